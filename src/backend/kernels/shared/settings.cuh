// Constants that are compiled into attention kernels beside the program.
#pragma once

constexpr bool kBf16 = /*{bf16}*/ true /*{}*/;       // elements of 16 bits are bf16, else f16
constexpr bool kFloats = /*{floats}*/ false /*{}*/;  // q, k and v are f32, else of 16 bits
// The dtype of k and v if it is FP8, which decode kernels take beside a q of 16 bits.
enum KeyKind { kElementKeys, kE4M3Keys, kE5M2Keys };
constexpr KeyKind kKeyKind = /*{key_kind}*/ kElementKeys /*{}*/;
// Whether rows of FP8 keys, or of values, have scales of their own.
constexpr bool kRowScales = /*{row_scales}*/ false /*{}*/;
// Whether q has that dtype too. Weights are then rounded to e4m3, in a forward alone.
constexpr bool kFloat8Queries = /*{float8_queries}*/ false /*{}*/;
// Tiles and MMAs are f32 if q, k and v are, or if d_o must not be rounded to their dtype.
constexpr bool kFloatTiles = /*{float_tiles}*/ false /*{}*/;
constexpr int kDimQk = /*{dim_qk}*/ 64 /*{}*/, kDimV = /*{dim_v}*/ 64 /*{}*/;
// Whether calls say where in a larger problem their indices begin.
constexpr bool kIndexOffsets = /*{index_offsets}*/ true /*{}*/;
// Whether a program's indices of queries, and of keys, are clamped to the problem. They are if operands are read at
// them, or if no mask computes with them, which takes fewer registers. Otherwise a mask's arithmetic is simpler
// without.
constexpr bool kClampsQueries = /*{clamps_queries}*/ true /*{}*/, kClampsKeys = /*{clamps_keys}*/ true /*{}*/;
constexpr int kOperands = /*{operands}*/ 1 /*{}*/;  // at least 1
// kQueries by kKeys is a tile of scores, and kWarps are the consumer warps of a CTA. kRowTiles is the number of 16-row
// tiles of a warp whose rows are queries. kStep is the queries that the dK/dV kernel takes at once, and kKeyStep the
// keys that the dQ kernel takes. kBlocks is how many CTAs should fit on an SM.
constexpr int kQueries = /*{queries}*/ 64 /*{}*/, kKeys = /*{keys}*/ 64 /*{}*/, kWarps = /*{warps}*/ 4 /*{}*/;
constexpr int kRowTiles = /*{row_tiles}*/ 1 /*{}*/, kStep = /*{step}*/ 32 /*{}*/, kKeyStep = /*{key_step}*/ 32 /*{}*/;
constexpr int kPart = /*{part}*/ 32 /*{}*/;  // queries of a step whose scores the backward of keys has at once
constexpr int kBlocks = /*{blocks}*/ 1 /*{}*/;
// Pack-GQA: rows of a tile are the queries of all heads that share a KV head.
constexpr bool kPackGqa = /*{pack_gqa}*/ false /*{}*/;
// Teams of a block's warps that have the same rows and walk over different keys, with tiles that they copy ahead.
constexpr int kTeams = /*{teams}*/ 1 /*{}*/;
// Groups of a CTA's warps that have the same rows and different dims of v, kDimV each; and the dims of all.
constexpr int kValueGroups = /*{value_groups}*/ 1 /*{}*/, kCtaDimV = kValueGroups * kDimV;
// The modified score of a kept key is the score itself.
constexpr bool kScoreIsValue = /*{score_is_value}*/ true /*{}*/;
constexpr bool kSeparateDv = /*{separate_dv}*/ false /*{}*/;
constexpr bool kFused = /*{fused}*/ false /*{}*/;  // dq is added up by the kernel of dk and dv
// Whether the heads that share a KV head take turns at each step of queries, else they come one after the other. With
// turns, a KV head's CTAs at the same queries read q and d_o of all its heads at about one time, so that L2 has them.
// So it is with dq. Sums of operand gradients want a head's steps in a row, and heads' own masks leave other steps.
constexpr bool kHeadsTakeTurns = /*{heads_take_turns}*/ false /*{}*/;
// Delta is recomputed, rowsum(weights * their gradients), or supplied by the call, rowsum(d_o * o).
constexpr bool kRecomputedDelta = /*{recomputed_delta}*/ false /*{}*/;
constexpr bool kGivenDeltas = /*{given_deltas}*/ false /*{}*/;
constexpr bool kSink = /*{has_sink}*/ true /*{}*/;                 // the softmax has a sink, sink_of()
constexpr bool kDropout = /*{dropout}*/ true /*{}*/;               // weights are dropped after the softmax
constexpr bool kDropoutKeys = /*{dropout_keys}*/ true /*{}*/;      // runtime arguments decide which
constexpr bool kDropoutPlaces = /*{dropout_places}*/ true /*{}*/;  // and where its queries and keys are in the whole
constexpr bool kMaxLogit = /*{max_logit}*/ true /*{}*/;            // the largest score of each row is an output
// Varlen packs sequences without padding; a paged KV cache has pages of kBlockRows rows.
constexpr bool kRaggedQueries = /*{ragged_queries}*/ true /*{}*/, kRaggedKeys = /*{ragged_keys}*/ true /*{}*/;
constexpr bool kPaged = /*{paged}*/ false /*{}*/;
// Whether the work tiles of varlen sequences are packed, see first_packed_tile(). Sums of operand gradients have a
// place for each tile of the longest length instead.
constexpr bool kPacksTiles = /*{packs_tiles}*/ true /*{}*/;
constexpr bool kPacksQueries = kPacksTiles && kRaggedQueries, kPacksKeys = kPacksTiles && kRaggedKeys;
constexpr int kBlockRows = /*{block_rows}*/ 1 /*{}*/;
// The dtype of o and d_o: that of q, k and v, the other one of 16 bits, or f32.
enum OutputKind { kHalfOutput, kOtherHalfOutput, kFloatOutput };
constexpr OutputKind kOutput = /*{output}*/ kHalfOutput /*{}*/;
// Facts about the mask: it is a band, it reads the score, or neither. If it reads the score, no tile is known to be
// full. A kernel finds the state of each tile if the mask, or a part of it, reads no score.
enum MaskKnowledge { kBandMask, kScoreMask, kListedMask };
constexpr MaskKnowledge kMask = /*{mask_kind}*/ kBandMask /*{}*/;
constexpr bool kHasStates = /*{has_states}*/ false /*{}*/;
constexpr bool kIsForward = /*{is_forward}*/ false /*{}*/;
constexpr bool kMaskVariesWithBatch = /*{mask_varies_with_batch}*/ false /*{}*/;
constexpr bool kMaskVariesWithHead = /*{mask_varies_with_head}*/ false /*{}*/;
constexpr bool kMaskVariesWithQuery = /*{mask_varies_with_query}*/ true /*{}*/;
// Whether a query keeps all keys that an earlier one of its head keeps.
constexpr bool kMaskGrowsWithQuery = /*{mask_grows_with_query}*/ false /*{}*/;
// Whether that holds, and a query keeps all keys before one that it keeps.
constexpr bool kMaskKeepsPrefix = /*{mask_keeps_prefix}*/ false /*{}*/;
constexpr int kProducers = /*{producers}*/ 0 /*{}*/;  // the producer threads of a Hopper CTA
// The stages of a pipeline; for decode kernels, the tiles that there is room for.
constexpr int kStages = /*{stages}*/ 2 /*{}*/;
constexpr bool kPersistent = /*{persistent}*/ false /*{}*/;  // the main kernel is a persistent one
