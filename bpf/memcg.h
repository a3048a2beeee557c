// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Reading the kernel's structures. Every OFF_ and NR_ comes from the running kernel's BTF (monitor/kernel/offsets.py):
// struct definitions from header files that do not match the kernel would read garbage without any error.

#define READ(dst, base, off) bpf_probe_read_kernel(&(dst), sizeof(dst), (void *)((u64)(base) + (off)))
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
// In loops that also end at a number read from memory: clang would count down from it to "not 0", and the verifier of 6.1 learns nothing from "not".
#define COUNTS_UP(i) asm volatile("" : "+r"(i))

BPF_PERCPU_ARRAY(counts, u64, COUNT_MAX);

static __always_inline void count(u32 which) {
  u64 *n = counts.lookup(&which);
  if (n) (*n)++;
}

BPF_HASH(domain_of, u64, u32, MAX_DOMAINS);  // memory cgroup id -> index into domains
BPF_F_TABLE("array", u32, struct domain, domains, MAX_DOMAINS, BPF_F_MMAPABLE);

// The inode of the cgroup's directory in the memory hierarchy.
static __always_inline u64 id_of(u64 cgroup) {
  u64 kn = 0, id = 0;
  READ(kn, cgroup, OFF_CGROUP_KN);
  READ(id, kn, OFF_KN_ID);
  return id;
}

static __always_inline u64 cgroup_of(u64 css) {
  u64 cgroup = 0;
  READ(cgroup, css, OFF_CSS_CGROUP);
  return cgroup;
}

static __always_inline u64 cgroup_id_of(u64 css) { return id_of(cgroup_of(css)); }

static __always_inline u64 css_parent(u64 css) {
  u64 parent = 0;
  READ(parent, css, OFF_CSS_PARENT);
  return parent;
}

static __always_inline int level_of(u64 cgroup) {
  int level = 0;
  READ(level, cgroup, OFF_CGROUP_LEVEL);
  return level;
}

// The id of the ancestor at a level (0: the root), from the array that every cgroup has: as dear at level 40 as at level 1. Returns the ancestor
// itself; 0 where that is not known, because before Linux 6.1 the array is of ids alone.
static __always_inline u64 ancestor(u64 cgroup, int level, int own_level, u64 *id) {
  u64 at = 0;
#ifdef OFF_CGROUP_ANCESTORS
  READ(at, cgroup, OFF_CGROUP_ANCESTORS + 8 * level);
  *id = id_of(at);
#else
  if (level == own_level) at = cgroup;
  READ(*id, cgroup, OFF_CGROUP_ANCESTOR_IDS + 8 * level);
#endif
  return at;
}

// A task's css in the memory hierarchy. bpf_get_current_cgroup_id() answers for the v2 hierarchy even where memory is on v1.
static __always_inline u64 task_css(u64 task) {
  u64 set = 0, css = 0;
  READ(set, task, OFF_TASK_CGROUPS);
  READ(css, set, OFF_CSS_SET_SUBSYS + 8 * MEMORY_CGRP_ID);
  return css;
}

// Index + 1 of the nearest watched cgroup at or above css that has `flags`; 0 if there is none.
static __always_inline u32 nearest_domain(u64 css, u64 flags, u64 *id) {
  u64 cgroup = cgroup_of(css);
  int level = level_of(cgroup);
  u32 found = 0;
  NO_UNROLL
  for (int i = 0; i <= MAX_LEVEL; i++) {
    COUNTS_UP(i);
    if (i > level) break;
    u64 key = 0;
    ancestor(cgroup, i, level, &key);
    u32 *index = domain_of.lookup(&key);
    if (index) {
      u32 at = *index;
      struct domain *d = domains.lookup(&at);
      if (d && (d->flags & flags) == flags) {
        *id = key;
        found = at + 1;
      }
    }
  }
  return found;
}

static __always_inline int is_below(u64 css, u64 cgroup_id) {
  u64 cgroup = cgroup_of(css);
  int level = level_of(cgroup);
  NO_UNROLL
  for (int i = 0; i <= MAX_LEVEL; i++) {
    COUNTS_UP(i);
    if (i > level) break;
    u64 id = 0;
    ancestor(cgroup, i, level, &id);
    if (id == cgroup_id) return 1;
  }
  return 0;
}

// A budget for records of one domain: one for every `each` ns, and `burst` of them at once. What a pod makes faster than that is counted
// instead of told, so it can neither fill a ring that others need nor keep its reader from them. CPUs that race here let one more
// through now and then.
static __always_inline int afford(u64 *due, u64 *over, u64 now, u64 each, u64 burst) {
  u64 at = *due;
  if ((s64)(at - now) > (s64)(each * burst)) {
    lock_xadd(over, 1);
    return 0;
  }
  *due = ((s64)(at - now) < 0 ? now : at) + each;
  return 1;
}

static __always_inline struct domain *domain_at(u32 number) {
  u32 at = number - 1;
  return number ? domains.lookup(&at) : 0;
}

// The pod that a task is in, as index + 1; 0 if it is in none.
static __always_inline u32 pod_of(u64 task) {
  u64 id = 0;
  return nearest_domain(task_css(task), DOMAIN_POD, &id);
}
