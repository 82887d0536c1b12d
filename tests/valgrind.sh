#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# valgrind.sh TEST [ARGUMENT...]: runs a test, with all that it forks, under memcheck. An error ends the process that
# made it with status 9; check, or the test whose child it was, reports that as a failure.
# What valgrind of these years lacks is switched off, and said to the test by RINGCAST_TEST_UNDER:
#   pidfd     the system call is not known to it
#   cpu_wait  nor are the instructions
#   spill     of 4 GiB, by default, costs seconds for each ring: it keeps a note of each 64 KiB that are mapped
set -euo pipefail
export RINGCAST_TEST_UNDER=valgrind RINGCAST_SPILL_BYTES=$((16 << 20))
export RINGCAST_DISABLE="pidfd,cpu_wait${RINGCAST_DISABLE:+,$RINGCAST_DISABLE}"
ulimit -c 0 # a test that is to die would leave a vgcore file here
# One thread runs at a time: without fair-sched, one that spins could keep those out that it waits for.
exec valgrind -q --fair-sched=yes --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect \
  --errors-for-leak-kinds=definite,indirect --suppressions="$(dirname "$0")/valgrind.supp" "$@"
