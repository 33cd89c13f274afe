/* maca.h: the C interface that a device implements to become the PyTorch device "maca".
 *
 * A library exports one symbol, maca_get_interface(). It returns a table of functions that only ever grows
 * at its end: what a later minor appends may be NULL. The table, and every struct that is passed alone, begins with
 * `size` (bytes, as its writer knew it) and may grow at its end as well, so an older reader and a newer writer of the
 * same major understand each other. Structs that come in arrays (maca_operand, maca_argument, maca_attribute,
 * maca_scalar) have no `size` and stay as they are; their `reserved` is 0. Majors must match.
 *
 * The interface does not grow with the set of operators: a kernel is named by a string, its operands are
 * described by dtype, sizes and strides, its static arguments travel as named attributes.
 *
 * Kernels
 *  - Which there are, with operands, attributes and scalars, docs/kernels.md lists and `macatensor ops --kernels`
 *    prints. A library may decline any of them, wholly or for some dtypes and shapes.
 *  - The arguments are those of the aten schema in its order. A tensor or a list of tensors is a maca_argument; a
 *    scalar, a number that may change from call to call, is one of launch.scalars, counted over the request in the
 *    schema's order (with tensors whose scalar_slot says that their value is a scalar); anything else is an attribute.
 *    out= arguments are results.
 *  - The attribute `NAME.scalar` (INT) says that the scalar NAME is launch.scalars[that]. It is left out where NAME
 *    is None. For a list of scalars it is the first slot, and `NAME.count` (INT) says how many follow.
 *  - The attribute `inplace` (BOOL, true) says that a list operator writes its first list and has no results.
 *  - The attribute `common_dtype` (a dtype) of an elementwise kernel says to which dtype PyTorch promotes the operands,
 *    dimensions, numbers and the default dtype considered (torch.result_type). It computes in that or better; functions
 *    that have no integers, as sqrt, compute these in the result's. A mask and what is only a parameter do not count.
 *  - The attribute `implementation` (STRING), which a caller sends that has asked plan_candidates, names the way in
 * which to compute. A library that cannot go it for this request declines.
 *  - A dtype is a STRING attribute ("float32"); layouts, devices, memory formats and generators are left out: they
 *    show in the results' dtypes and strides.
 *  - Inputs come as the program has them, of any strides, and are not broadcast: a pointwise kernel aligns sizes
 *    from the last dimension, where 1 repeats. Nor are dtypes converted: the results' dtypes are PyTorch's, and a
 *    kernel computes in them or better.
 *  - Results have the sizes and strides that PyTorch's meta kernel says. They hold anything when the kernel begins, and
 *    every element of them is written.
 *  - A kernel touches the elements of its operands alone, nothing before, behind or between them. It writes no input
 *    but those that docs/kernels.md says it writes.
 *  - Indices are checked by the kernel, before they are used. One out of range is MACA_ERROR_INDEX, and not sticky.
 *  - A request that contradicts itself, or lacks an attribute, is refused with a reason; plan_create survives any.
 *  - In place: a result of an elementwise kernel may lie in the very memory of an input, with its dtype, sizes and
 *    strides, where each launch decides. Dense operands that overlap in part never reach a launch where one is written.
 *  - NaN and infinities go by IEEE 754 as in PyTorch's CPU kernels: maximum, minimum, clamp and relu give NaN for
 *    NaN, sorts put it last, comparisons are false and `ne` true. Denormal numbers are kept, unless the program asked
 *    for zeros in their place (torch.set_flush_denormal). Bounds of the rest: the op table's, which `macatensor parity`
 *    measures.
 *
 * Rules that hold for every function
 *  - `maca_device*` comes first; there is no current device.
 *  - No function throws, exits or prints. It returns a maca_status; when it fails and takes a maca_reason, the
 *    reason says why in one English sentence. Any other number is an error of the library, as is MACA_OK with a
 *    NULL handle or address. The caller raises what it gets, with the name of the function: MACA_OUT_OF_MEMORY as
 *    OutOfMemoryError, MACA_UNSUPPORTED as NotImplementedError, others as RuntimeError.
 *  - After an error with `sticky` the device is lost: the caller calls no function of it again, and raises that error
 *    where it would. So it is in the child of a fork() too, unless `features` has MACA_DEVICE_FORKS.
 *  - Of a struct that the library fills in (maca_device_info, maca_plan_info, maca_error, maca_reason) the caller
 *    sets `size` and makes the rest zero, packed_operand -1. The library writes no more than `size` bytes. Strings
 *    end with a zero.
 *  - Device addresses are opaque: the caller adds byte offsets to them and hands them back, nothing more. A library
 *    whose device memory is host memory sets a non-canonical tag bit in every address it gives out and strips it
 *    again on entry, so that host code that dereferences one faults.
 *  - A NULL stream is the default stream. Work on one stream runs in the order it was submitted.
 *  - Functions may be called from any thread at any time.
 */
#ifndef MACA_H
#define MACA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MACA_ABI_MAJOR 2
#define MACA_ABI_MINOR 2

typedef struct maca_device maca_device;
typedef struct maca_stream maca_stream;
typedef struct maca_event maca_event;
typedef struct maca_plan maca_plan;
typedef struct maca_comm maca_comm;

typedef enum maca_status {
  MACA_OK = 0,
  MACA_DECLINED = 1,      /* plan_create: this kernel or library cannot serve the request; try another way */
  MACA_INVALID = 2,       /* the request breaks the kernel's contract (dtypes, extents, attributes) */
  MACA_OUT_OF_MEMORY = 3, /* no memory of that size */
  MACA_NOT_READY = 4,     /* query: submitted work has not finished */
  MACA_DEVICE_ERROR = 5,  /* a launch failed; error_take tells which and why */
  MACA_UNSUPPORTED = 6    /* the device has no such feature */
} maca_status;

/* One sentence for a person, zero-terminated, written by the library into memory of the caller. */
typedef struct maca_reason {
  uint32_t size;
  char text[508];
} maca_reason;

/* Element types: DLPack's DLDataType, with its codes; lanes is always 1. */
typedef enum maca_dtype_code {
  MACA_INT = 0,
  MACA_UINT = 1,
  MACA_FLOAT = 2,
  MACA_BFLOAT = 4,
  MACA_COMPLEX = 5,
  MACA_BOOL = 6 /* a byte: 0 is false, every other is true and may be read; kernels that compute one write 0 or 1 */
} maca_dtype_code;

typedef struct maca_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} maca_dtype;

/* A scalar: a number given at launch. `tag` says which members hold it; complex ones use both doubles. */
typedef enum maca_scalar_tag {
  MACA_SCALAR_INT = 0,
  MACA_SCALAR_FLOAT = 1,
  MACA_SCALAR_COMPLEX = 2,
  MACA_SCALAR_BOOL = 3
} maca_scalar_tag;

typedef struct maca_scalar {
  uint32_t tag;
  uint32_t reserved;
  union {
    int64_t integer; /* INT and BOOL: never rounded through a double */
    double real;     /* FLOAT, and the real part of COMPLEX */
  } value;
  double imaginary;
} maca_scalar;

/* One tensor operand. Strides count elements and are never negative; 0 repeats an element. Every address passed for it
 * is a multiple of its element's size. */
typedef struct maca_operand {
  maca_dtype dtype;
  int32_t rank;        /* -1: absent, and nothing else says anything */
  int32_t scalar_slot; /* -1: memory. Else a 0-dim operand whose value is launch.scalars[scalar_slot] */
  uint32_t reserved;
  const int64_t* sizes;
  const int64_t* strides;
} maca_operand;

/* One argument of the operator, in the order of its schema; the results follow the inputs. */
typedef enum maca_argument_kind {
  MACA_ARGUMENT_ABSENT = 0, /* an optional tensor that was None; it still takes one (NULL) pointer at launch */
  MACA_ARGUMENT_TENSOR = 1,
  MACA_ARGUMENT_LIST = 2 /* a list of tensors, `count` of them; absent members have rank -1 */
} maca_argument_kind;

typedef struct maca_argument {
  int32_t kind;
  int32_t is_output;
  int32_t count;
  uint32_t reserved;
  const maca_operand* operands;
} maca_argument;

/* A static argument of the operator, by the name its schema gives it. None is left out. */
typedef enum maca_attribute_kind {
  MACA_ATTRIBUTE_INT = 0,
  MACA_ATTRIBUTE_FLOAT = 1,
  MACA_ATTRIBUTE_BOOL = 2,
  MACA_ATTRIBUTE_STRING = 3,
  MACA_ATTRIBUTE_INTS = 4,
  MACA_ATTRIBUTE_FLOATS = 5,
  MACA_ATTRIBUTE_BOOLS = 6 /* int64_t each */
} maca_attribute_kind;

typedef struct maca_attribute {
  int32_t kind;
  uint32_t reserved;
  const char* name;
  int64_t integer;       /* INT, BOOL */
  double real;           /* FLOAT */
  const char* text;      /* STRING */
  int64_t count;         /* lists */
  const int64_t* ints;   /* INTS, BOOLS */
  const double* doubles; /* FLOATS */
} maca_attribute;

typedef enum maca_plan_flags {
  MACA_PLAN_DETERMINISTIC = 1, /* equal inputs must give equal bits in every run */
  MACA_PLAN_TF32 = 2           /* float32 products may round their inputs to 10 mantissa bits */
} maca_plan_flags;

typedef struct maca_plan_request {
  uint32_t size;
  uint32_t flags;
  const char* kernel;
  int32_t argument_count;
  int32_t attribute_count;
  int32_t scalar_count; /* scalars that every launch brings */
  uint32_t reserved;
  const maca_argument* arguments;
  const maca_attribute* attributes;
} maca_plan_request;

typedef enum maca_cost {
  MACA_COST_SHORT = 0, /* microseconds: the caller may hold its locks */
  MACA_COST_LONG = 1   /* the caller should release them around the launch */
} maca_cost;

typedef struct maca_plan_info {
  uint32_t size;
  int32_t cost;
  uint64_t workspace_bytes; /* scratch memory that every launch needs; as all numbers here at most 2^50 */
  uint64_t rng_blocks;      /* Philox counters one launch consumes */
  int32_t packed_operand;   /* operand that plan_pack can prepare once (a weight), or -1 */
  uint32_t reserved;
  uint64_t packed_bytes;
  const char*
      implementation; /* the algorithm that was chosen, for people and profiles, or NULL; lives as the plan does */
} maca_plan_info;

typedef struct maca_launch {
  uint32_t size;
  uint32_t pointer_count;
  void* const* pointers; /* one per operand, inputs then outputs, lists flattened */
  const maca_scalar* scalars;
  uint32_t scalar_count;
  uint32_t reserved;
  void* workspace;
  const void* packed; /* what plan_pack wrote for packed_operand, or NULL: use the operand itself */
  uint64_t rng_seed;
  uint64_t rng_offset;
  maca_stream* stream;
  uint64_t correlation; /* comes back in maca_error */
} maca_launch;

typedef enum maca_error_code {
  MACA_ERROR_NONE = 0,
  MACA_ERROR_INDEX = 1,    /* an index out of range: IndexError */
  MACA_ERROR_VALUE = 2,    /* a value that the operator does not take: RuntimeError, as the next two */
  MACA_ERROR_ASSERT = 3,   /* a device-side assertion of the operator failed */
  MACA_ERROR_INTERNAL = 4, /* a defect of the library */
  MACA_ERROR_SINGULAR = 5  /* a matrix without inverse or factors: torch.linalg.LinAlgError */
} maca_error_code;

typedef struct maca_error {
  uint32_t size;
  int32_t status; /* MACA_DEVICE_ERROR; MACA_OK: there is no error */
  int32_t code;   /* of maca_error_code */
  int32_t sticky; /* 1: the device is lost until the process ends: torch.AcceleratorError */
  uint64_t correlation;
  char text[512]; /* what failed, with the numbers that PyTorch would name */
} maca_error;

typedef enum maca_device_feature {
  MACA_DEVICE_ASYNCHRONOUS = 1, /* work on the default stream may go on when the call that gave it has returned */
  MACA_DEVICE_FORKS =
      2, /* a child of fork() may go on to use the device, with the parent's memory, plans and streams */
  MACA_DEVICE_COMM_LOCAL = 4 /* since 2.1: communicators join ranks of one machine alone; others are not asked to */
} maca_device_feature;

typedef struct maca_device_info {
  uint32_t size;
  int32_t threads; /* compute threads or multiprocessors, 1 or more */
  int32_t kernel_count;
  int32_t alignment; /* of every allocation, in bytes: a power of two, 16 (a complex128) or more */
  char name[128];
  char simd[32];       /* instruction set or architecture in use */
  char libraries[256]; /* what the kernels stand on, with versions */
  uint32_t features;   /* of maca_device_feature */
} maca_device_info;

typedef enum maca_copy_kind { MACA_COPY_TO_DEVICE = 0, MACA_COPY_TO_HOST = 1, MACA_COPY_ON_DEVICE = 2 } maca_copy_kind;

typedef enum maca_copy_flags {
  MACA_COPY_QUEUED = 1 /* the host's side is of host_allocate, and left alone until the stream has passed the copy */
} maca_copy_flags;

typedef enum maca_event_flags {
  MACA_EVENT_TIMED = 1 /* event_elapsed may be asked of it */
} maca_event_flags;

/* --- Communicators (minor 1): what ranks of torch.distributed exchange, in the functions of NCCL's API -------------
 */

/* What the ranks of one communicator have in common; as opaque as ncclUniqueId, and spread by the caller. */
typedef struct maca_comm_id {
  char bytes[128];
} maca_comm_id;

typedef struct maca_comm_request {
  uint32_t size;
  int32_t rank; /* of this process: 0 to ranks - 1 */
  int32_t ranks;
  uint32_t reserved;
  uint64_t timeout_ms; /* for the other ranks to come */
  maca_comm_id id;
} maca_comm_request;

/* Integers wrap. A half, and a bfloat16, is added up as a float32 that is rounded once. Of truth values SUM and MAX are
 * BOR, PRODUCT and MIN are BAND. MIN and MAX give NaN for NaN. */
typedef enum maca_comm_reduction {
  MACA_COMM_SUM = 0,
  MACA_COMM_PRODUCT = 1,
  MACA_COMM_MAX = 2,
  MACA_COMM_MIN = 3,
  MACA_COMM_AVERAGE = 4, /* the sum over the number of ranks; of integers rounded towards zero */
  MACA_COMM_BAND = 5,    /* BAND, BOR, BXOR: of integers and truth values */
  MACA_COMM_BOR = 6,
  MACA_COMM_BXOR = 7
} maca_comm_reduction;

/* What a collective is beside its addresses: the same on every rank. */
typedef struct maca_collective {
  uint32_t size;
  maca_dtype dtype;
  int32_t reduction; /* a maca_comm_reduction; 0 where nothing is reduced */
  int32_t root;      /* of comm_broadcast and comm_reduce; 0 in others */
  uint64_t count;    /* elements; see each function */
  uint64_t timeout_ms;
  uint64_t digest; /* of what the program called. Where a library compares calls, it compares this as well */
} maca_collective;

/* When a launch ran, in nanoseconds of the host's real-time clock. */
typedef struct maca_profile_record {
  uint64_t correlation; /* of maca_launch */
  int64_t start_ns, end_ns;
} maca_profile_record;

/* The table. [M] marks mandatory slots: loading fails without them. For the others a NULL means the default
 * that stands in parentheses. Later minors append theirs at the end. */
typedef struct maca_interface {
  uint32_t size;
  uint16_t major;
  uint16_t minor;
  const char* library; /* name and version of the implementation, for people */

  /* Devices. [M] device_open makes the context of device `index`; [M] device_close frees one that the caller refuses.
   */
  maca_status (*device_count)(int32_t* count); /* (one device); no device of the index is an ImportError */
  maca_status (*device_open)(int32_t index, maca_device** device, maca_reason* reason);
  maca_status (*device_close)(maca_device* device);
  maca_status (*device_info)(maca_device* device, maca_device_info* info); /* [M] */
  maca_status (*device_synchronize)(maca_device* device);                  /* [M] all streams idle */
  maca_status (*device_set_threads)(maca_device* device, int32_t threads); /* (ignored, as with MACA_UNSUPPORTED) */
  const char* (*kernel_name)(maca_device* device, int32_t index);          /* [M] NULL at kernel_count */

  /* Raw memory; caching is the caller's. `bytes` is 1 or more. What is too much is MACA_OUT_OF_MEMORY, of which the
   * device recovers. memory_info may say 0 of 0 bytes: unknown. [M] */
  maca_status (*memory_allocate)(maca_device* device, uint64_t bytes, void** address);
  maca_status (*memory_free)(maca_device* device, void* address);
  maca_status (*memory_info)(maca_device* device, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Memory that grows in place. memory_reserve takes a range of addresses and no memory, until the device is closed;
   * memory_commit puts memory, of any content, behind a part of it and memory_decommit takes it away. Parts are
   * multiples of `granularity` in place and size; none is committed twice. Nothing that runs uses a part that is taken
   * away. Addresses and granularity are multiples of the alignment. (the three go together; without them, or with
   * MACA_UNSUPPORTED or MACA_OUT_OF_MEMORY from memory_reserve, memory comes from memory_allocate in segments; memory
   * that memory_decommit keeps with MACA_OUT_OF_MEMORY stays where it is) */
  maca_status (*memory_reserve)(maca_device* device, uint64_t bytes, void** address, uint64_t* granularity);
  maca_status (*memory_commit)(maca_device* device, void* address, uint64_t bytes);
  maca_status (*memory_decommit)(maca_device* device, void* address, uint64_t bytes);

  /* Pinned host memory, which host code reads and writes (no tag) and copies run from and to without the host; aligned
   * as allocations are, cached by the caller. (the two go together; without them, or with MACA_UNSUPPORTED from
   * host_allocate, pin_memory() gives ordinary memory and says so once, and every copy returns when it is done) */
  maca_status (*host_allocate)(maca_device* device, uint64_t bytes, void** address);
  maca_status (*host_free)(maca_device* device, void* address);

  /* [M] Copies return when the host's side may be reused, with MACA_COPY_QUEUED whenever they like. [M] fill writes one
   * byte value. */
  maca_status (*copy)(maca_device* device, int32_t kind, void* to, const void* from, uint64_t bytes, uint32_t flags,
                      maca_stream* stream);
  maca_status (*fill)(maca_device* device, void* to, int32_t byte, uint64_t bytes, maca_stream* stream);

  /* Streams and events. [M], priority: lower runs first. Events time in milliseconds; one that was never recorded has
   * finished. The queries and event_elapsed may say MACA_NOT_READY, after a wait for the same they must not. */
  maca_status (*stream_create)(maca_device* device, int32_t priority, maca_stream** stream);
  maca_status (*stream_destroy)(maca_device* device, maca_stream* stream);
  maca_status (*stream_synchronize)(maca_device* device, maca_stream* stream);
  maca_status (*stream_query)(maca_device* device, maca_stream* stream);
  maca_status (*stream_wait_event)(maca_device* device, maca_stream* stream, maca_event* event);
  maca_status (*event_create)(maca_device* device, uint32_t flags, maca_event** event);
  maca_status (*event_destroy)(maca_device* device, maca_event* event);
  maca_status (*event_record)(maca_device* device, maca_event* event, maca_stream* stream);
  maca_status (*event_query)(maca_device* device, maca_event* event);
  maca_status (*event_synchronize)(maca_device* device, maca_event* event);
  maca_status (*event_elapsed)(maca_device* device, maca_event* start, maca_event* end, double* milliseconds);

  /* Plans. [M] except plan_pack (nothing is packed; as with MACA_DECLINED, MACA_UNSUPPORTED and MACA_OUT_OF_MEMORY,
   * after which a launch takes the operand itself). plan_create may decline; the caller then goes another way, and with
   * MACA_INVALID asks PyTorch for its words first. plan_launch returns MACA_OK, MACA_OUT_OF_MEMORY or
   * MACA_DEVICE_ERROR. A plan is immutable and re-entrant; destroying one with launches in flight is legal. */
  maca_status (*plan_create)(maca_device* device, const maca_plan_request* request, maca_plan** plan,
                             maca_reason* reason);
  maca_status (*plan_info)(maca_device* device, const maca_plan* plan, maca_plan_info* info);
  maca_status (*plan_pack)(maca_device* device, const maca_plan* plan, const void* operand, void* packed,
                           maca_stream* stream);
  maca_status (*plan_launch)(maca_device* device, const maca_plan* plan, const maca_launch* launch);
  maca_status (*plan_destroy)(maca_device* device, maca_plan* plan);

  /* [M] Takes the oldest error that no one has taken; status MACA_OK in it when there is none. A launch that
   * ran at once returns MACA_DEVICE_ERROR itself and leaves its error here, a queued one only that; a wait may return
   * MACA_DEVICE_ERROR for it too. */
  maca_status (*error_take)(maca_device* device, maca_error* error);

  /* Communicators, from minor 1. Ranks are processes, each with its device; a process may have many communicators.
   * comm_id makes an id on one rank, which is given to all; comm_create returns when every rank has come with it, and
   * may decline: the ranks are on machines, or of builds, that it does not join (MACA_DECLINED), or there is no memory
   * (MACA_OUT_OF_MEMORY). Where one rank gets no communicator the caller destroys those of the others. comm_abort may
   * be called beside a collective that waits: it ends with an error, and so do all that follow, on every rank that
   * waits for this one. (the first eleven of these slots go together; without them, or with comm_create declined, gloo
   * carries the bytes through the host's memory) */
  maca_status (*comm_id)(maca_device* device, maca_comm_id* id, maca_reason* reason);
  maca_status (*comm_create)(maca_device* device, const maca_comm_request* request, maca_comm** comm,
                             maca_reason* reason);
  maca_status (*comm_destroy)(maca_device* device, maca_comm* comm);
  maca_status (*comm_abort)(maca_device* device, maca_comm* comm);
  /* MACA_OK, or MACA_DEVICE_ERROR and why work of this communicator that was queued before has failed. */
  maca_status (*comm_error)(maca_device* device, maca_comm* comm, maca_reason* reason);

  /* Collectives: every rank calls the same ones of a communicator in the same order, one at a time. They are work of
   * the stream: with the default stream of a device that is not MACA_DEVICE_ASYNCHRONOUS they are over on return, and
   * return what became of them; else they return when they are queued, and comm_error says what became of them. After
   * `timeout_ms` in which another rank did not come they fail, or the caller aborts. MACA_DECLINED, on all ranks alike
   * and before anything has moved: not with this dtype or reduction; the caller goes another way. MACA_INVALID,
   * likewise: the ranks called different collectives, or with another dtype, reduction, root, count or digest (a
   * library need not compare them). MACA_DEVICE_ERROR: a rank died, did not come, or aborted; the communicator is
   * broken, the device is not. Reductions have the same bits on every rank, and in every run where the plan flag for
   * that is asked of kernels; those of the host library are always in the order of the ranks. `to` may be `from`.
   * `count` is
   *  - all_reduce, reduce, broadcast: of `to` and `from`. `to` of a reduce counts on the root alone, where it may be
   *    written and elsewhere is left alone; `from` of a broadcast counts on the root alone, the root's `to` is `from`.
   *  - all_gather: of `from`; `to` has one part a rank. reduce_scatter: of `to`; `from` has one part a rank.
   *  - all_to_all: nothing, 0. Part i, of from_counts[i] elements at from[i], goes to rank i, and to_counts[i] come
   * from it to to[i]; parts may be empty, and lie in one another's memory where they are only read. */
  maca_status (*comm_all_reduce)(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                 const void* from, maca_stream* stream, maca_reason* reason);
  maca_status (*comm_reduce)(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                             const void* from, maca_stream* stream, maca_reason* reason);
  maca_status (*comm_broadcast)(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                const void* from, maca_stream* stream, maca_reason* reason);
  maca_status (*comm_all_gather)(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                 const void* from, maca_stream* stream, maca_reason* reason);
  maca_status (*comm_reduce_scatter)(maca_device* device, maca_comm* comm, const maca_collective* call, void* to,
                                     const void* from, maca_stream* stream, maca_reason* reason);
  maca_status (*comm_all_to_all)(maca_device* device, maca_comm* comm, const maca_collective* call, void* const* to,
                                 const uint64_t* to_counts, const void* const* from, const uint64_t* from_counts,
                                 maca_stream* stream, maca_reason* reason);

  /* Device memory that the other ranks' collectives reach without a copy, as ncclMemAlloc's. It is memory as that of
   * memory_allocate in everything else. (the two go together; without them, or with MACA_UNSUPPORTED or
   * MACA_OUT_OF_MEMORY, operands lie in ordinary memory) */
  maca_status (*comm_allocate)(maca_device* device, uint64_t bytes, void** address);
  maca_status (*comm_free)(maca_device* device, void* address);

  /* Since 2.1. From profile_set with `on` 1 the device keeps when each launch began and ended, until it is 0 again;
   * profile_take gives up to `capacity` of those that are over and forgets them. (the two go together; without them,
   * or with MACA_UNSUPPORTED, a launch that runs on is shown where it was given) */
  maca_status (*profile_set)(maca_device* device, int32_t on);
  maca_status (*profile_take)(maca_device* device, maca_profile_record* records, int32_t capacity, int32_t* count);

  /* Since 2.2. The ways in which the library can compute requests like this one, beside its own choice: up to
   * `capacity` names, each a value of the attribute `implementation`, and in `count` how many these are. Names are of
   * printable ASCII, at most 63 characters, stay as they are from build to build where the way does, and live as long
   * as the library. The caller measures them, so one that plan_create then declines costs little. What the request says
   * of `implementation` does not count. (the library's own choice is all that there is, as with MACA_UNSUPPORTED) */
  maca_status (*plan_candidates)(maca_device* device, const maca_plan_request* request, const char** names,
                                 int32_t capacity, int32_t* count);
} maca_interface;

/* NULL when the library does not speak this major. */
const maca_interface* maca_get_interface(int32_t major);

#ifdef __cplusplus
}
#endif
#endif
