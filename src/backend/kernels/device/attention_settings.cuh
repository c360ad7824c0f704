// What is compiled into attention kernels beside the program.
#pragma once

constexpr bool kBf16 = /*{bf16}*/ true /*{}*/;       // halves are bf16, else f16
constexpr bool kFloats = /*{floats}*/ false /*{}*/;  // q, k and v are f32, else halves
// Tiles are f32, and so are products: where q, k and v are, and where d_o must not be rounded to their dtype.
constexpr bool kFloatTiles = /*{float_tiles}*/ false /*{}*/;
constexpr int kDimQk = /*{dim_qk}*/ 64 /*{}*/, kDimV = /*{dim_v}*/ 64 /*{}*/;
// Whether calls say where in a larger problem their indices begin.
constexpr bool kIndexOffsets = /*{index_offsets}*/ true /*{}*/;
// Whether a program's indices of queries, and of keys, are made ones of the problem: where operands are read at them,
// and where no mask computes with them, which takes fewer registers. Elsewhere a mask's arithmetic is simpler without.
constexpr bool kClampsQueries = /*{clamps_queries}*/ true /*{}*/, kClampsKeys = /*{clamps_keys}*/ true /*{}*/;
constexpr bool kComputesWithIndices = /*{computes_with_indices}*/ true /*{}*/;  // the program, beside reading operands
constexpr int kOperands = /*{operands}*/ 1 /*{}*/;                              // at least 1
constexpr bool kReadsOperands = /*{reads_operands}*/ true /*{}*/;
// A tile of scores, the warps of a block, rows of 16 that a warp has where rows are queries, queries that the backward
// of keys takes at once and keys that the one of queries takes, and how many blocks a multiprocessor should have room
// for.
constexpr int kQueries = /*{queries}*/ 64 /*{}*/, kKeys = /*{keys}*/ 64 /*{}*/, kWarps = /*{warps}*/ 4 /*{}*/;
constexpr int kRowTiles = /*{row_tiles}*/ 1 /*{}*/, kStep = /*{step}*/ 32 /*{}*/, kKeyStep = /*{key_step}*/ 32 /*{}*/;
constexpr int kPart = /*{part}*/ 32 /*{}*/;  // queries of a step whose scores the backward of keys has at once
constexpr int kBlocks = /*{blocks}*/ 1 /*{}*/;
// Rows of a tile are the queries of all heads that share a head of keys.
constexpr bool kPackedHeads = /*{packed_heads}*/ false /*{}*/;
// Teams of a block's warps that have the same rows and walk over different keys, with tiles that they copy ahead.
constexpr int kTeams = /*{teams}*/ 1 /*{}*/;
// The modified score of a kept key is the score itself.
constexpr bool kScoreIsValue = /*{score_is_value}*/ true /*{}*/;
constexpr bool kSplitKeys = /*{split_keys}*/ false /*{}*/;
constexpr bool kFused = /*{fused}*/ false /*{}*/;  // dq is added up by the kernel of dk and dv
// Where it is: when it is told that products may read a step's gradients, which waits for additions to memory that are
// under way, and when these are made.
enum DqOrder { kFenceAtOnce, kLateFence, kEarlyAdditions };
constexpr DqOrder kDqOrder = /*{dq_order}*/ kFenceAtOnce /*{}*/;
constexpr bool kOwnDeltas = /*{own_deltas}*/ false /*{}*/;      // row_terms() are made from weights and their gradients
constexpr bool kGivenDeltas = /*{given_deltas}*/ false /*{}*/;  // rows' deltas are those of the o and d_o of the call
constexpr bool kSink = /*{sink}*/ true /*{}*/;                  // the softmax has a sink, sink_of()
constexpr bool kDropout = /*{dropout}*/ true /*{}*/;            // weights are dropped after the softmax
constexpr bool kDropoutKeys = /*{dropout_keys}*/ true /*{}*/;   // the call binds what decides which
constexpr bool kDropoutPlaces = /*{dropout_places}*/ true /*{}*/;  // and where its queries and keys are in the whole
constexpr bool kMaxLogit = /*{max_logit}*/ true /*{}*/;            // the largest score of each row is an output
// Sequences lie one after the other, without padding; keys lie in blocks of a pool, of so many rows.
constexpr bool kRaggedQueries = /*{ragged_queries}*/ true /*{}*/, kRaggedKeys = /*{ragged_keys}*/ true /*{}*/;
constexpr bool kPaged = /*{paged}*/ false /*{}*/;
constexpr int kBlockRows = /*{block_rows}*/ 1 /*{}*/;
// What o and d_o are: halves are those of q, k and v, unless these are floats.
enum OutputKind { kHalfOutput, kOtherHalfOutput, kFloatOutput };
constexpr OutputKind kOutput = /*{output}*/ kHalfOutput /*{}*/;
// What operands gain whose gradients are summed here: those that do not vary along keys, those that do, tables whose
// indices follow from kv_idx - q_idx, each read of other tables, those along both that batches or heads share, and all,
// in this order.
constexpr int kRowTargets = /*{row_targets}*/ 1 /*{}*/, kKeyTargets = /*{key_targets}*/ 1 /*{}*/;
constexpr int kDifferenceTargets = /*{difference_targets}*/ 0 /*{}*/;
constexpr int kTableReads = /*{table_reads}*/ 1 /*{}*/, kSharedTargets = /*{shared_targets}*/ 1 /*{}*/;
constexpr int kTargets = /*{targets}*/ 5 /*{}*/;
// What is known of the mask: that it is a band, or that it reads the score, without which no tile is known to be full,
// or neither; and whether a kernel finds the state of each tile, as it does where the mask, or a part of it, reads no
// score.
enum MaskKnowledge { kBandMask, kScoreMask, kListedMask };
constexpr MaskKnowledge kMask = /*{mask}*/ kBandMask /*{}*/;
constexpr bool kHasStates = /*{has_states}*/ false /*{}*/;
// What leaves a backward's sums the registers that they need. There is no rule behind it: masks and programs of each
// kind were compiled in every way by ptxas 13.0, for head dims 64 and 128 and both kinds of halves. How an index is
// seen to be of the problem: by comparing it with what kClampsQueries made of it, or with the length.
constexpr bool kComparesClamped = kPart <= 64 ? !kFused || kTargets == 0 || !kComputesWithIndices : !kHasStates;
// Whether a step's keys take four of its rows' terms at once.
constexpr bool kReadsFourTerms = !kFused      ? kPart <= 64 && kTargets == 0
                                 : kPart > 64 ? !kScoreIsValue && !kClampsKeys && kTargets == 0 && kReadsOperands
                                              : kScoreIsValue || kClampsKeys || kTargets > 0;
constexpr bool kMaskVariesWithBatch = /*{mask_varies_with_batch}*/ false /*{}*/;
constexpr bool kMaskVariesWithHead = /*{mask_varies_with_head}*/ false /*{}*/;
constexpr bool kMaskVariesWithQuery = /*{mask_varies_with_query}*/ true /*{}*/;
// Of Hopper kernels: threads of a block that copy tiles for the others, tiles of a kind that are copied ahead (keys of
// the backward of queries: kKeyStages; of few queries' kernels: tiles that there is room for), and rows of each copy.
constexpr int kProducers = /*{producers}*/ 0 /*{}*/;
constexpr int kStages = /*{stages}*/ 2 /*{}*/, kKeyStages = /*{key_stages}*/ 2 /*{}*/;
constexpr int kBoxRows = /*{box_rows}*/ 64 /*{}*/;
// Of a Hopper forward: whether a block has tiles of queries one after the other, and how many it has room for.
constexpr bool kPersistent = /*{persistent}*/ false /*{}*/;
constexpr int kQueryStages = /*{query_stages}*/ 1 /*{}*/;
// Likewise: whether the numbers of an operand that varies along queries and keys are copied, a tile for each tile of
// scores, as k and v are.
constexpr bool kCopiesOperand = /*{copies_operand}*/ false /*{}*/;
