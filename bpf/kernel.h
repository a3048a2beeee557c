// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// All that BCC and these programs take from a kernel's header files: BCC includes it as <linux/kconfig.h> (monitor/kernel/loader.py).
// PAGE_SIZE, in which rings are measured, is given by the loader.

#define CONFIG_BPF_SYSCALL 1  // BCC refuses to compile without
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 8, 0)  // the oldest for these programs; no kernel since 5.0 looks at it
#define __always_inline inline __attribute__((always_inline))

// <asm-generic/int-ll64.h>: the same on every architecture.
typedef signed char s8, __s8;
typedef unsigned char u8, __u8;
typedef signed short s16, __s16;
typedef unsigned short u16, __u16, __be16, __le16, __sum16;
typedef signed int s32, __s32;
typedef unsigned int u32, __u32, __be32, __le32, __wsum;
typedef signed long long s64, __s64;
typedef unsigned long long u64, __u64, __be64, __le64;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
typedef __SIZE_TYPE__ size_t, uintptr_t;
typedef int pid_t;
#if __STDC_VERSION__ < 202311L
typedef _Bool bool;
enum { false, true };
#endif
