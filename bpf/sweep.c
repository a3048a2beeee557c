// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Programs that user space runs itself (BPF_PROG_RUN; monitor/kernel/sweeping.py): the walk over all memory cgroups that makes every sum exact,
// and reading usage anew where no event reports that it moved.

// Do `act` for the domains from `index` on, COMMIT_CHUNK of them at most (monitor/kernel/loader.py). Returns the next domain, 0 at the `end`.
static __always_inline int each_domain(u32 index, u32 end, void (*act)(struct domain *d, u64 sweep, bool forget), u64 sweep, bool forget) {
  NO_UNROLL
  for (int n = 0; n < COMMIT_CHUNK; n++) {
    COUNTS_UP(n);
    if (index >= end) return 0;
    struct domain *d = domains.lookup(&index);
    if (!d) return 0;
    act(d, sweep, forget);
    index++;
  }
  return index;
}

static __always_inline void begin_domain(struct domain *d, u64 sweep, bool forget) {
  if (forget && !(d->flags & DOMAIN_MACHINE)) d->synced = 0;
  d->shadow_inactive = 0;
  d->shadow_active = 0;
  d->shadow_sweep = sweep;
}

// Before a sweep: args[0] = first domain, args[1] = the sweep's number, args[2] = end, args[3] = 1 if the old sums are wrong, because the programs
// were detached: they are not compared until the sweep is over. A domain added later has no part in it. Returns the next domain, 0 at the end.
int begin(struct bpf_raw_tracepoint_args *ctx) {
  return each_domain(ctx->args[0], ctx->args[2], begin_domain, ctx->args[1], ctx->args[3]);
}

static __always_inline u64 root_css(void) {
  u64 root = 0, css = 0;
  READ(root, cgroup_of(task_css(bpf_get_current_task())), OFF_CGROUP_ROOT);
  READ(css, root, OFF_CGROUP_ROOT_CGRP + OFF_CGROUP_SUBSYS + 8 * MEMORY_CGRP_ID);
  return css;
}

// One stretch of a walk over all memory cgroups, also the dying ones that still hold page cache. Run by user space (BPF_PROG_RUN),
// args[0] = sweep number, args[1] = 1 to begin. Returns 0 when there is more to do, 1 at the end, 2 if where it paused is gone: begin again,
// with the same number.
int sweep(struct bpf_raw_tracepoint_args *ctx) {
  u32 zero = 0;
  struct sweep *s = sweeps.lookup(&zero);
  if (!s) return 1;
  if (ctx->args[1]) {
    s->root = s->css = root_css();
    s->up = 0;
    s->number = ctx->args[0];
  } else if (!s->css || cgroup_id_of(s->css) != s->id) {
    count(COUNT_SWEEP_RESTARTED);
    return 2;
  }

  NO_UNROLL
  for (int n = 0; n < SWEEP_CHUNK; n++) {
    u64 css = s->css, at = 0;
    if (!s->up) {
      evaluate(OWN_SWEEP, css - OFF_MEMCG_CSS, 1, 0, s->number, 0, 0, 0);
      count(COUNT_SWEPT);
      READ(at, css, OFF_CSS_CHILDREN);
      if (at && at != css + OFF_CSS_CHILDREN) {
        s->css = at - OFF_CSS_SIBLING;  // pre-order: the first child
        continue;
      }
    }
    // else the next sibling, or one level up; a turn each, because the tree may be of any depth
    if (css == s->root) {
      s->css = 0;
      return 1;
    }
    u64 parent = css_parent(css);
    READ(at, css, OFF_CSS_SIBLING);
    if (!parent || !at) {
      count(COUNT_SWEEP_RESTARTED);
      return 2;  // it was freed meanwhile
    }
    s->up = at == parent + OFF_CSS_CHILDREN;
    s->css = s->up ? parent : at - OFF_CSS_SIBLING;
  }
  s->id = cgroup_id_of(s->css);
  return 0;
}

// Adding the difference (rather than storing the sum) keeps every change that happened since, because changes go to both.
//
// A domain in which no memory cgroup was found, its own neither, stays unknown: it lies deeper than these programs look, or is gone.
static __always_inline void commit_domain(struct domain *d, u64 sweep, bool forget) {
  if (!d->cgroup_id || d->shadow_sweep != sweep || !(d->css || (d->flags & DOMAIN_MACHINE))) return;
  if (!(d->flags & DOMAIN_MACHINE)) {
    s64 fix_inactive = d->shadow_inactive - d->inactive_file;
    s64 fix_active = d->shadow_active - d->active_file;
    if (fix_inactive) lock_xadd(&d->inactive_file, fix_inactive);
    if (fix_active) lock_xadd(&d->active_file, fix_active);
  }
  if (!d->synced) {
    s64 ws = used(d);
    d->reported = ws < 0 ? 0 : ws;
  }
  d->synced = sweep;
}

// Take the swept sums over: args[0] = first domain, args[1] = sweep number, args[2] = end. Returns as `begin`.
int commit(struct bpf_raw_tracepoint_args *ctx) { return each_domain(ctx->args[0], ctx->args[2], commit_domain, ctx->args[1], 0); }

// The machine's own counters, anew, in the entry args[0].
int touch(struct bpf_raw_tracepoint_args *ctx) {
  u32 index = ctx->args[0];
  struct domain *d = domains.lookup(&index);
  if (d && d->flags & DOMAIN_MACHINE) read_machine(root_css() - OFF_MEMCG_CSS, d);
  return 0;
}

static __always_inline void reread_domain(struct domain *d, u64 sweep, bool forget) {
  u64 css = known_css(d), usage = 0;
  if (!css) return;
  READ(usage, css - OFF_MEMCG_CSS, OFF_MEMCG_MEMORY + OFF_COUNTER_USAGE);
  d->usage = usage;
}

// Read usage anew from the page_counters: args[0] = first domain, args[1] = end. What is uncharged last, in one batch, when a process
// frees a lot, is followed by no event. Returns as `begin`.
int reread(struct bpf_raw_tracepoint_args *ctx) { return each_domain(ctx->args[0], ctx->args[1], reread_domain, 0, 0); }
