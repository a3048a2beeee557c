// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Hook "memcg-tracepoint" (Linux 6.13 and later): memcg:mod_memcg_lruvec_state and mod_memcg_state, raw, after each charge.
//
// The first fires once per page or folio. The gate below lets 4 events per MiB through (measured: 128 MiB of 4K pages = 515 passes), because
// the page_counter itself moves in batches of 64 pages; all expensive work is behind it.

// Ageing (inc_max_seq()) announces what it moves from the active to the inactive side before the generations change places, so a read
// now gives the split of before: the next event through the gate reads once more (2: for no other reason).
static __always_inline u64 read_again(u64 file) {
#ifdef NR_GENERATIONS
  return (file & 1) << 1;
#else
  return 0;
#endif
}

static __always_inline int on_stat(u32 own, u64 memcg, int val, int rising, u64 file, s64 pending_inactive, s64 pending_active) {
  struct gate *g = gates.lookup(&own);
  if (!g) return 0;
  u64 moved = g->moved + (val < 0 ? -val : val);
  file |= g->file;
  u64 usage;
  if (g->memcg == memcg) {
    // A batch of 64 pages is charged before its first page is counted here, so looking at every eighth page still finds it with 56
    // of them unused. Reading usage at every page cost a page fault 15 % instead of 10 %.
    if (moved - g->checked < 8) goto wait;
    READ(usage, memcg, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
    // Two ways through: the page_counter moved (a batch was charged or freed), or 64 pages of statistics moved without it. The second
    // is for the root cgroup, which is never charged, and for page cache that turns active: the working set rises, usage does not.
    if (usage == g->usage && moved < 64) {
      g->checked = moved;
      goto wait;
    }
  } else {
    READ(usage, memcg, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
  }
  count(COUNT_EVALUATED);
  g->rising = rising;
  g->hidden = 0;
  evaluate(own, memcg, file, g, 0, pending_inactive, pending_active, 0);
  g->memcg = g->hidden ? 0 : memcg;  // a ceiling looks crossed, but is not reported: the next event comes through as well
  g->usage = usage;
  g->moved = 0;
  g->checked = 0;
  g->file = read_again(file);
  return 0;
wait:
  g->moved = moved;
  g->file = file;
  return 0;
}

// The items that matter, as a bitmap: all of them are below 64 on every kernel seen (17, 19, 2, 3 on 6.18).
#define ITEMS (1ULL << NR_ANON_MAPPED_ | 1ULL << NR_FILE_PAGES_ | 1ULL << NR_INACTIVE_FILE_ | 1ULL << NR_ACTIVE_FILE_)

int on_lruvec_stat(struct bpf_raw_tracepoint_args *ctx) {
  u32 item = (u32)ctx->args[1];
  if (item > 63 || !(ITEMS >> item & 1)) return 0;
  int val = (int)ctx->args[2];  // int up to 7.0, zero-extended; long since 7.2: this cast is right for both
  int inactive = item == NR_INACTIVE_FILE_, active = item == NR_ACTIVE_FILE_;
  return on_stat(OWN_LRUVEC_STAT, ctx->args[0], val, val > 0 && !inactive, inactive | active, inactive ? val : 0, active ? val : 0);
}

// Kernel memory, sockets: charged to the same counter, but they never touch an LRU list.
int on_memcg_stat(struct bpf_raw_tracepoint_args *ctx) {
  int item = (int)ctx->args[1];
  if (item != MEMCG_KMEM_ && item != MEMCG_SOCK_) return 0;
  int val = (int)ctx->args[2];
  return on_stat(OWN_MEMCG_STAT, ctx->args[0], val, val > 0, 0, 0, 0);
}
