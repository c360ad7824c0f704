/* scoremod's C interface: plain C99, for C and for every language that calls C. docs/guide/c.md is a walk through it.
 *
 * Rules that hold for every function here:
 * - A function that can fail returns a scoremod_status. Unless that is SCOREMOD_OK, nothing that it would have created
 *   exists; with SCOREMOD_INVALID_ARGUMENT and SCOREMOD_UNSUPPORTED, no tensor has been written either.
 * - Its last argument, char** message, may be NULL. Otherwise *message becomes NULL on success and, on failure, a
 *   NUL-terminated UTF-8 text that says what was expected, what was found and what to do. The caller owns it and frees
 *   it with scoremod_text_free. It stays NULL when there is no memory for it.
 * - NULL where something is needed is SCOREMOD_INVALID_ARGUMENT. No C++ exception leaves the library.
 * - Texts that are passed in are read during the call only. Several threads may call at once, with the same attention
 *   too, if each call has its own outputs and workspace. Destroying an attention must be the last use of it.
 * - A struct with struct_size grows only at its end. The caller sets struct_size to sizeof the struct, fields that the
 *   caller's header did not have count as zero, and zero always means the default.
 */
#ifndef SCOREMOD_C_API_H
#define SCOREMOD_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using,modernize-deprecated-headers): these are C's names */

#define SCOREMOD_C_API __attribute__((visibility("default")))

/* The outcome of a call; the numbers never change. */
typedef int32_t scoremod_status;
enum {
  SCOREMOD_OK = 0,
  SCOREMOD_INVALID_ARGUMENT = 1, /* the caller's mistake */
  SCOREMOD_UNSUPPORTED = 2,      /* a valid request that no backend can run; the message holds each backend's reasons */
  SCOREMOD_ENVIRONMENT = 3,      /* the machine: memory, files, drivers; the system's own text is kept */
  SCOREMOD_BUG = 4,              /* an invariant of scoremod itself broke; please report it */
  SCOREMOD_FULL = 5,             /* of replies alone: the queue held as many requests as it may, and refuses */
  SCOREMOD_SHUT_DOWN = 6,        /* of replies alone: the queue was shut down before the request began */
  SCOREMOD_CONTEXT_LOST = 7      /* the machine: a kernel broke the CUDA context, and no later call on the device works
                                    in this process; end it and start it again */
};

/* A compiled problem. Immutable. */
typedef struct scoremod_attention scoremod_attention;

/* Memory that a call reads, and memory that it writes; bytes must cover the tensor. */
typedef struct scoremod_const_buffer {
  const void* data;
  size_t bytes;
} scoremod_const_buffer;

typedef struct scoremod_buffer {
  void* data;
  size_t bytes;
} scoremod_buffer;

/* A tensor that the program reads, by the name under which the program declares it. Lengths, offsets and page tables
 * that are out of range are refused in host memory. In device memory offsets and lengths are clamped, and keys of an
 * invalid page are masked. Offsets there may leave tokens to no sequence, before the first one or behind the last one.
 * Their rows of o and of gradients become 0, and those of the LSE -inf. */
typedef struct scoremod_operand {
  const char* name;
  scoremod_const_buffer buffer;
} scoremod_operand;

/* The gradient of a float operand, with the operand's dtype, shape and strides. Overwritten, not added to. */
typedef struct scoremod_operand_gradient {
  const char* name;
  scoremod_buffer buffer;
} scoremod_operand_gradient;

typedef struct scoremod_compile_options {
  size_t struct_size;
  const char* backend; /* "cudnn", "kernels", "cpu", "reference"; NULL or "": a choice among `backends` */
  const char* const* disabled_passes; /* names of compiler passes to leave out */
  size_t disabled_pass_count;
  int32_t threads;    /* CPU threads; 0: OMP_NUM_THREADS, or one for each core; SCOREMOD_THREADS is the most */
  int32_t has_device; /* not 0: `device` takes the place of the calling thread's current CUDA device */
  int32_t device;     /* its ordinal; the host is device 0 */
  /* The memory of the calls' tensors: "host" or "cuda"; NULL or "": the named backend's memory, or the host's. */
  const char* memory;
  /* The backends to choose from: the first named one that supports the problem; names after a '-' are left out.
   * None: those of SCOREMOD_BACKENDS, else the one that is predicted to be the fastest. */
  const char* const* backends;
  size_t backend_count;
  size_t max_workspace;  /* bytes of device memory that a call may need; 0: SCOREMOD_MAX_WORKSPACE, or 8 GiB */
  int32_t autotune;      /* not 0: measure what may run at the first use, and remember the fastest */
  int32_t support_level; /* of scoremod_support: 0 builds and verifies as creating does; 1 builds nothing */
  /* A call whose fastest plan has to be built first: 1 waits. 2 serves it by a plan that is ready, and later calls by
   * the faster one as soon as it is built and verified. 0: SCOREMOD_NEW_SIZES, else docs/reference/plans.md says it:
   * mostly 2. */
  int32_t new_sizes;
  /* scoremod_support and scoremod_explain: they answer for the device with these properties, the text that `scoremod
   * device` prints on a machine with it, which need not be this one. Plans are built and not tried. NULL: a device that
   * is here. Other functions refuse it. */
  const char* device_properties;
} scoremod_compile_options;

/* Distances between neighbours along each dimension, in elements. */
typedef struct scoremod_strides {
  int64_t batch, head, sequence, dim;
} scoremod_strides;

/* The shape and strides of one operand in a call of a problem with open sizes. */
typedef struct scoremod_operand_sizes {
  const char* name;
  size_t rank;            /* of `shape` and `strides` */
  const int64_t* shape;   /* of a table whose extents the problem leaves open; NULL for every other operand */
  const int64_t* strides; /* in elements; NULL: dense */
} scoremod_operand_sizes;

/* The sizes of a call of a problem that leaves some open (null in its JSON), and the strides of its tensors. 0 and
 * NULL: as the problem says. Sizes that are 0 themselves need takes_zeros. */
typedef struct scoremod_sizes {
  size_t struct_size;
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, tokens_q, tokens_kv;
  int64_t blocks, blocks_per_sequence; /* of the pool of paged keys, and of its page tables */
  const scoremod_strides *q, *k, *v, *o, *d_o, *dq, *dk, *dv;
  const scoremod_operand_sizes* operands; /* those whose shape or strides the problem leaves open */
  size_t operand_count;
  int32_t takes_zeros; /* not 0: an open size that is 0 here is 0; 0: it is missing, and refused */
} scoremod_sizes;

/* Options that may differ from call to call without a new attention. */
typedef struct scoremod_call_options {
  size_t struct_size;
  void* stream;      /* a device backend's stream; the CPU ignores it */
  int32_t has_scale; /* not 0: `scale` takes the place of the problem's */
  float scale;
  /* Added to the local indices, so that a shard of a larger problem (index_offsets) sees true positions. */
  int32_t batch_offset;
  int32_t head_offset;
  int32_t query_offset;
  int32_t key_offset;
  /* Which weights a problem with dropout drops; a backward is given those of its forward. */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
} scoremod_call_options;

/* Shapes, dtypes and strides of all tensors are those of the problem. */
typedef struct scoremod_forward_args {
  size_t struct_size;
  scoremod_const_buffer q, k, v;
  const scoremod_operand* operands;
  size_t operand_count;
  scoremod_buffer o;
  scoremod_buffer lse;                  /* f32 [batch, heads_q, seq_q], or [tokens_q, heads_q]; needed with stats */
  scoremod_buffer workspace;            /* {NULL, 0}: scoremod allocates it for the call */
  const scoremod_call_options* options; /* NULL: the defaults */
  scoremod_buffer max_logit;            /* as the lse; for problems with max_logit alone */
  scoremod_buffer amax_o;               /* f32, one element; for problems with amax_o alone */
} scoremod_forward_args;

typedef struct scoremod_backward_args {
  size_t struct_size;
  scoremod_const_buffer q, k, v, o, lse, d_o;
  const scoremod_operand* operands;
  size_t operand_count;
  scoremod_buffer dq, dk, dv;
  const scoremod_operand_gradient* d_operands; /* those wanted */
  size_t d_operand_count;
  scoremod_buffer workspace;
  const scoremod_call_options* options;
  scoremod_buffer amax_dq, amax_dk, amax_dv; /* f32, one element each; for problems with amax_gradients alone */
} scoremod_backward_args;

/* A call that is made often, with other memory each time: its structs stand ready, and scoremod_attention_call puts
 * each address, with its bytes, into its buffer before it calls. Threads have structs of their own. An attention that
 * leaves sizes open is called at `sizes`, as the one that scoremod_attention_at gives for them. */
typedef struct scoremod_prepared_call {
  size_t struct_size;
  const scoremod_attention* attention;
  const scoremod_forward_args* forward; /* this or the next; the other is NULL */
  const scoremod_backward_args* backward;
  scoremod_buffer* const* buffers; /* those of forward or backward, or of their operands and gradients */
  void* const* addresses;
  const size_t* bytes;
  size_t count;                /* of the three arrays above */
  const scoremod_sizes* sizes; /* NULL for an attention of fixed sizes */
} scoremod_prepared_call;

/* The library's version, such as "0.1.0". */
SCOREMOD_C_API const char* scoremod_version(void);

/* "ok", "invalid argument", "unsupported", "environment", "bug", "full", "shut down" or "context lost"; "unknown
 * status" for any other number. */
SCOREMOD_C_API const char* scoremod_status_name(scoremod_status status);

/* Frees a text that scoremod gave to the caller. NULL is fine. */
SCOREMOD_C_API void scoremod_text_free(char* text);

/* Compiles the problem that `problem_json` describes (docs/reference/problem.md) and sets *attention, which the caller
 * destroys with scoremod_attention_destroy. `options` may be NULL. Sizes may be 0 as docs/reference/sizes.md says:
 * calls then return at once, and tensors without elements may be {NULL, 0}. */
SCOREMOD_C_API scoremod_status scoremod_attention_create(const char* problem_json,
                                                         const scoremod_compile_options* options,
                                                         scoremod_attention** attention, char** message);
/* NULL is fine. */
SCOREMOD_C_API void scoremod_attention_destroy(scoremod_attention* attention);

/* As scoremod_attention_create, but equal problems with equal options on one device are compiled once, and kept for the
 * process as docs/reference/cache.md says. The caller destroys *attention all the same. */
SCOREMOD_C_API scoremod_status scoremod_attention_get(const char* problem_json, const scoremod_compile_options* options,
                                                      scoremod_attention** attention, char** message);

/* The attention for a call's sizes, if the problem leaves sizes open. Both functions above compile such a problem once;
 * only this function, scoremod_attention_call and scoremod_attention_problem take the open attention. The first sizes
 * of a structure build kernels; others run the same kernels, and take microseconds. The caller destroys *of_sizes. The
 * open attention keeps the most recent 1024, and may be destroyed before them. */
SCOREMOD_C_API scoremod_status scoremod_attention_at(const scoremod_attention* attention, const scoremod_sizes* sizes,
                                                     scoremod_attention** of_sizes, char** message);

/* Sets *problem_json to the problem as it was understood, every default filled in; the caller frees it. */
SCOREMOD_C_API scoremod_status scoremod_attention_problem(const scoremod_attention* attention, char** problem_json,
                                                          char** message);

/* Sets *backend to the name of the backend that runs it. The text lives as long as the attention. */
SCOREMOD_C_API scoremod_status scoremod_attention_backend(const scoremod_attention* attention, const char** backend,
                                                          char** message);

/* Sets *backend to the name of the backend that runs the backward, or to "" for a problem without one.
 * SCOREMOD_UNSUPPORTED, with every reason, where the problem wants a backward and none runs it. */
SCOREMOD_C_API scoremod_status scoremod_attention_backward_backend(const scoremod_attention* attention,
                                                                   const char** backend, char** message);

/* Bytes of scratch that each call needs, aligned to 64; 0 for the backward of a problem without one. */
SCOREMOD_C_API scoremod_status scoremod_attention_forward_workspace_bytes(const scoremod_attention* attention,
                                                                          size_t* bytes, char** message);
SCOREMOD_C_API scoremod_status scoremod_attention_backward_workspace_bytes(const scoremod_attention* attention,
                                                                           size_t* bytes, char** message);

/* Computes o, and lse when it is given. */
SCOREMOD_C_API scoremod_status scoremod_attention_forward(const scoremod_attention* attention,
                                                          const scoremod_forward_args* args, char** message);
/* Computes dq, dk, dv and the operand gradients. The problem must have "backward": true. */
SCOREMOD_C_API scoremod_status scoremod_attention_backward(const scoremod_attention* attention,
                                                           const scoremod_backward_args* args, char** message);

/* scoremod_attention_forward or scoremod_attention_backward, as `call` says. */
SCOREMOD_C_API scoremod_status scoremod_attention_call(const scoremod_prepared_call* call, char** message);

/* Asks every backend whether it can run the problem: by what options->support_level says. *answers_json becomes
 * [{"backend": "cpu", "supported": true, "forward_supported": true, "reasons": [], "refusals": [], "notes": [],
 *   "memory": "host"}, ...] in the order of preference; the caller frees it. "reasons" are texts, and "refusals" are
 * the same reasons as {"id", "direction", "text", "remedy"}: docs/reference/unsupported_reasons.md has the ids. */
SCOREMOD_C_API scoremod_status scoremod_support(const char* problem_json, const scoremod_compile_options* options,
                                                char** answers_json, char** message);

/* How the problem is compiled, and why: the mask's class, the program before and after the passes, its derivative,
 * FLOPs, and every backend's answer with its workspace. *explanation_json is the JSON of `scoremod explain
 * --json` (docs/reference/command.md); the caller frees it. That no backend runs the problem is no error here. */
SCOREMOD_C_API scoremod_status scoremod_explain(const char* problem_json, const scoremod_compile_options* options,
                                                char** explanation_json, char** message);

/* Runs requests in threads of its own, in the order in which they come, each with a workspace of the queue's: for one
 * device, that of the first request. */
typedef struct scoremod_request_queue scoremod_request_queue;

typedef struct scoremod_request_queue_options {
  size_t struct_size;
  size_t capacity;          /* requests that may wait to begin; 0: 64 */
  int32_t refuse_when_full; /* not 0: one more is answered with SCOREMOD_FULL; 0: submitting it blocks */
  int32_t threads;          /* requests that run at the same time; 0: 1 */
} scoremod_request_queue_options;

/* Called exactly once for each request, by a thread of the queue or by the one that submits or shuts down. No lock is
 * held, and a device's work is done. message lives during the call and is "" with SCOREMOD_OK. */
typedef void (*scoremod_reply)(void* user, scoremod_status status, const char* message);

/* `options` may be NULL. */
SCOREMOD_C_API scoremod_status scoremod_request_queue_create(const scoremod_request_queue_options* options,
                                                             scoremod_request_queue** queue, char** message);
/* Shuts it down: requests that have not begun are answered with SCOREMOD_SHUT_DOWN, and running ones are waited for.
 * Drain it first to have all requests run. Not in a reply. NULL is fine. */
SCOREMOD_C_API void scoremod_request_queue_destroy(scoremod_request_queue* queue);
/* Returns once each request that was submitted before the call has been answered, and takes none away: the queue goes
 * on. Requests that come meanwhile are not waited for. In a reply it fails with SCOREMOD_INVALID_ARGUMENT. */
SCOREMOD_C_API scoremod_status scoremod_request_queue_drain(scoremod_request_queue* queue, char** message);
/* Answers all requests that wait, and all that come later, with SCOREMOD_SHUT_DOWN, and waits for those that run. */
SCOREMOD_C_API scoremod_status scoremod_request_queue_shut_down(scoremod_request_queue* queue, char** message);

/* Submit a call. Unless the status is SCOREMOD_OK there is no reply, and with it there is one. The tensors must live
 * until then; the structs, names and the attention need not. args->workspace must be {NULL, 0}. */
SCOREMOD_C_API scoremod_status scoremod_request_queue_submit_forward(scoremod_request_queue* queue,
                                                                     const scoremod_attention* attention,
                                                                     const scoremod_forward_args* args,
                                                                     scoremod_reply reply, void* user, char** message);
SCOREMOD_C_API scoremod_status scoremod_request_queue_submit_backward(scoremod_request_queue* queue,
                                                                      const scoremod_attention* attention,
                                                                      const scoremod_backward_args* args,
                                                                      scoremod_reply reply, void* user, char** message);

/* Compiled attentions are kept in memory, plans of device backends in memory and in files for the next process:
 * docs/reference/cache.md. These functions look at all of them and empty them. They are safe beside calls, and beside
 * other processes that use the files. */

/* Sets *statistics_json to counts and limits; the caller frees it. It is an object with
 * - "attentions": {"hits", "misses", "waits", "failures", "evictions", "entries", "limit"}
 * - "compiled": {"problems", "forwards", "backwards"}
 * - "plans": {"hits", "misses", "waits", "builds", "refusals", "failures", "evictions", "entries", "bytes",
 *            "limits": {"plans", "bytes"}}
 * - "store": {"hits", "misses", "rejected", "writes", "failed_writes", "directory", "limit_bytes"}
 * - "builds": {"count", "milliseconds"}, "loads": {...}, "trials": {...} */
SCOREMOD_C_API scoremod_status scoremod_cache_statistics(char** statistics_json, char** message);

/* Limits of the plans in memory, for each backend; 0 keeps none. What is over them is dropped at once. An attention
 * keeps the plans that it uses. */
SCOREMOD_C_API scoremod_status scoremod_plan_cache_set_limits(size_t plans, size_t bytes, char** message);
/* How many compiled attentions scoremod_attention_get keeps; 0 keeps none. What is over it is dropped at once. */
SCOREMOD_C_API scoremod_status scoremod_attention_cache_set_limit(size_t attentions, char** message);
/* Drops all of them from memory; whoever holds one keeps it. */
SCOREMOD_C_API scoremod_status scoremod_attention_cache_clear(char** message);

/* Drops every plan, and every refusal, from memory. Files stay. */
SCOREMOD_C_API scoremod_status scoremod_plan_cache_clear(char** message);

/* Uses this folder for files from now on, and none when it is "". */
SCOREMOD_C_API scoremod_status scoremod_plan_store_set_directory(const char* directory, char** message);
/* Bytes that the files may take; beyond it the least recently used are deleted. */
SCOREMOD_C_API scoremod_status scoremod_plan_store_set_limit(uint64_t bytes, char** message);

/* Sets *files_json to [{"name", "bytes", "last_used", "damage", "kind", "library", "engine", "architecture", "label"},
 * ...], the last used first; the caller frees it. `verify` not 0 reads the files in full, so that every damage is
 * found. */
SCOREMOD_C_API scoremod_status scoremod_plan_store_files(int32_t verify, char** files_json, char** message);

/* Each deletes files: the least recently used until the rest takes at most max_bytes, those that are damaged, all.
 * *deletion_json, which may not be wanted, becomes {"files": 3, "bytes": 251904}; the caller frees it. */
SCOREMOD_C_API scoremod_status scoremod_plan_store_prune(uint64_t max_bytes, char** deletion_json, char** message);
SCOREMOD_C_API scoremod_status scoremod_plan_store_remove_damaged(char** deletion_json, char** message);
SCOREMOD_C_API scoremod_status scoremod_plan_store_clear(char** deletion_json, char** message);

/* NOLINTEND(readability-identifier-naming,modernize-use-using,modernize-deprecated-headers) */

#ifdef __cplusplus
}
#endif

#endif
