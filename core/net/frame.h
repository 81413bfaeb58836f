/*
 * frame.h - the unit that travels: header, MessagePack metadata, payload.
 *
 * docs/wire.md is the specification.  The payload is a row of segments, each padded
 * with zeros to a multiple of 64 bytes, so that every segment is 64-byte aligned where
 * the payload begins so.
 *
 * Threads: pure functions.
 */
#ifndef TM_NET_FRAME_H
#define TM_NET_FRAME_H

#include "base/pack.h"

enum {
  TM_WIRE_VERSION = 1,
  TM_FRAME_HEAD = 40,
  TM_FRAME_ALIGN = 64,
  TM_FRAME_MAX_META = 16 << 20,
  TM_FRAME_MAX_SEGMENTS = 65536,
  TM_HELLO_MAX = 4096
};

/* What a frame is about.  Values never change once released. */
typedef enum tm_frame_kind {
  TM_F_HELLO = 1,    /* the first frame of whoever connects */
  TM_F_HELLO_OK = 2, /* the answer */
  TM_F_ERROR = 3,    /* a tm_err: answers any request */
  TM_F_PING = 4,     /* heartbeat; not answered */
  TM_F_OK = 5,       /* an answer without content */

  TM_F_PS_REQUEST = 16, /* data plane: UPDATEs, then READs */
  TM_F_PS_REPLY = 17,
  TM_F_PS_CREATE = 18,
  TM_F_PS_DROP = 19,
  TM_F_PS_REFUSE = 20,
  TM_F_PS_STATS = 21,
  TM_F_PS_STATS_REPLY = 22,

  TM_F_PS_SNAPSHOT = 23, /* one moment of a store, kept until it is released */
  TM_F_PS_SNAPSHOT_REPLY = 24,
  TM_F_PS_SAVE = 25, /* write parts of a snapshot to a file */
  TM_F_PS_SAVE_REPLY = 26,
  TM_F_PS_SNAPSHOT_READ = 27, /* a piece of a snapshot, for a chief that writes */
  TM_F_PS_SNAPSHOT_PIECE = 28,
  TM_F_PS_RELEASE = 29,
  TM_F_PS_LOAD = 30, /* read parts of files into shards and slots */
  TM_F_PS_LOAD_REPLY = 31,

  TM_F_START = 32, /* control plane, chief to worker: the cluster, seeds */
  TM_F_GRAPH = 33,
  TM_F_VARIABLE = 34,
  TM_F_ITERATOR = 35,
  TM_F_RESOURCE_DROP = 36,
  TM_F_CLOSURES = 37,
  TM_F_CANCEL = 38,
  TM_F_DONE = 39, /* worker to chief: completions */
  TM_F_DOWN = 40, /* the worker can go on no more: a tm_err */
  TM_F_STOP = 41, /* end this process */

  TM_F_CLAIM = 42,  /* a chief asks for the highest term of the task */
  TM_F_GRANT = 43,  /* the answer */
  TM_F_RECALL = 44, /* closures not started are to come back */
  TM_F_GATE = 45,   /* no UPDATE may start / may start again */
  TM_F_GATED = 46,
  TM_F_LEAVING = 47,  /* worker to chief: it will end, and why */
  TM_F_RESOURCE = 48, /* a resource that a function makes on the worker */
  TM_F_LANE = 49,     /* chief to ps: serve these shards, and who keeps a copy */

  TM_F_PS_OPEN = 64, /* data plane: which lane this connection speaks of */
  TM_F_PS_OPENED = 65,
  TM_F_REPLICA = 66,        /* a primary begins to make a backup of a lane */
  TM_F_REPLICA_TOKENS = 67, /* what the lane's ps remembers of UPDATEs */
  TM_F_REPLICA_SHARD = 68,  /* a shard as it is at this moment */
  TM_F_REPLICA_DONE = 69,   /* all was said: from now on it may become the primary */
  TM_F_REPLICA_LOST = 70,   /* a primary to the chief: may it go on alone? */
  TM_F_PS_TOKENS = 71,      /* what a checkpoint has of closures that will run again */
  TM_F_PS_COMMIT = 72       /* a round ends: the mean of these shares is applied */
} tm_frame_kind;

typedef struct tm_frame {
  uint16_t kind;
  uint32_t flags;
  uint64_t id; /* of the request; an answer has the same */
  uint32_t meta_bytes;
  uint64_t payload_bytes;
} tm_frame;

void tm_frame_pack(const tm_frame *f, uint8_t head[TM_FRAME_HEAD]);
/* Magic, version, checksum, limits.  TM_EDATALOSS: these are no frame's bytes. */
TM_CHECKED tm_status tm_frame_unpack(const uint8_t head[TM_FRAME_HEAD],
                                     uint64_t max_payload, tm_frame *f, tm_err *err);

/* n rounded up to whole segments. */
static inline uint64_t tm_frame_pad(uint64_t n) {
  return (n + TM_FRAME_ALIGN - 1) & ~(uint64_t)(TM_FRAME_ALIGN - 1);
}

/* Of which chief: cluster/term.h says what follows.  Both 0: of none (yet). */
typedef struct tm_term {
  uint64_t number;
  uint64_t chief; /* its incarnation */
} tm_term;

/* Who speaks. */
typedef struct tm_hello {
  char cluster[64];     /* cluster id; both ends must have the same */
  char task[48];        /* "/job:worker/task:0" */
  char purpose[16];     /* "data" or "control" */
  uint64_t incarnation; /* random per process start */
  tm_term term;         /* of the chief that speaks, or in whose work */
} tm_hello;

void tm_hello_pack(tm_packer *w, const tm_hello *h);
TM_CHECKED tm_status tm_hello_unpack(const void *p, size_t n, tm_hello *h, tm_err *err);

/* An error as metadata. */
void tm_err_pack(tm_packer *w, const tm_err *e);
/* Reads one; a code that is not known becomes TM_EUNKNOWN, never TM_OK. */
void tm_err_unpack(tm_unpacker *r, tm_err *e);

#endif
