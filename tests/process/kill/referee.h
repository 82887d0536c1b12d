/* SPDX-License-Identifier: Apache-2.0 */
/* What a round is made of; by the one process that strikes. */
#ifndef RC_TESTS_KILL_REFEREE_H
#define RC_TESTS_KILL_REFEREE_H

#include "tests/process/kill/kill.h"
#include "tests/support/children.h"

void start_party(int index);

/* Looks until it is so; false: that is a hang, which has been told and counted. */
bool until(bool (*is_so)(const void *), const void *context, const char *what);
bool within(uint64_t ns, bool (*is_so)(const void *), const void *context);
void let_pass(uint64_t ns);

/* Kills or stops a party now; or has it do so itself, at a point. */
void strike(int index, int signal);
void arm(int index, int point, int signal, uint32_t passes);
void disarm(int index);
bool has_struck(int index, uint64_t ns);
void note_struck(int index, int point, int signal);
bool await_stopped(int index);
void go_on(int index);

bool bury(int index); /* waits for its end */
void bury_all_by_force(void);

#endif
