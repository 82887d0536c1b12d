#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants bugs in gpu/, one at a time, and sees that the tests catch each of them.

    plants.py --source DIR --out DIR --cc CC --program NAME OBJECTS... --libraries=A:B [--only NAME]
    plants.py --source DIR --check      only sees that each replacement matches the sources

A plant is a few replacements in one or two files, each of which must match exactly once: copies of those files are
compiled and linked in front of the library's own. A program is run with them by fixed seeds until it fails. First each
way of running is run with nothing planted, and must pass. Exit status 1 if a plant was not caught.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

# A race is met in some runs only: CLOSING in two of five.
SEEDS = range(1, 17)
SEEDS_WITHOUT = range(1, 5)

PLAIN = "--messages 150 --patience 4"
SLOW = "--messages 300 --patience 4 --delays 4000 --slots 6 --flood 1 --typical 4000 --releases 0"
UNREAD = "--messages 200 --patience 4 --delays 4000 --slots 6 --flood 1 --releases 2 --drops 3 --expect-pool 30"
VIEWS = "--messages 150 --patience 4 --views 1 --slots 12 --flood 1 --releases 0"
BY_RING = "--messages 400 --patience 4 --pool 0 --ring 65536 --typical 5000 --delays 4000 --views 0"
FAR = "--messages 300 --patience 4 --generation 0x8000000000000005 --slots 6 --delays 4000 --flood 1"
GUESTS = "--messages 300 --patience 4 --guests 6 --kills 3 --slots 12 --flood 1 --releases 3"
ALONE = "--messages 100 --patience 4 --consumers 1 --slots 12 --flood 1 --expect-pool 30"
CLOSING = "--messages 60 --patience 4 --slots 32 --flood 1 --delays 9000 --slow 9000"

# name: (what is run, [(file, text, in its place)]). The program is gpu_broadcast; "test_...": one of those.
PLANTS = {
    # Acknowledged too early.
    "ack_before_the_copy": (SLOW, [("take.c",
        "  if (result == RC_CU_SUCCESS) return 0;\n  rc_import_forget",
        "  if (result == RC_CU_SUCCESS) return (int)rc_semaphore_write(gpu->device.cuda, take->stream, "
        "segment->address + rc_gpu_ack_at(segment->importers, take->slot, import->importer), take->generation);\n"
        "  rc_import_forget")]),
    "ack_before_the_last_copies": ("gpu_scenarios reader:last_copies_that_fail", [("take.c",
        "  for (uint32_t i = 0; i < count && failed == 0; i++) failed = copy_one(gpu, take, &copies[i]);\n",
        "  if (failed == 0 && is_last) acknowledge(gpu, take);\n"
        "  for (uint32_t i = 0; i < count && failed == 0; i++) failed = copy_one(gpu, take, &copies[i]);\n")]),
    "ack_by_the_host": (SLOW, [("import.c",
        "  return rc_semaphore_write(import->device.cuda, taken->stream,",
        "  rc_semaphore_store(rc_import_ack(import, slot), taken->generation);\n"
        "  return RC_CU_SUCCESS;\n"
        "  return rc_semaphore_write(import->device.cuda, taken->stream,")]),
    "ack_on_another_stream": (SLOW, [("import.c",
        "taken->stream, import->segment.address",
        "NULL, import->segment.address")]),
    "ack_of_another_slot": (SLOW, [("import.c",
        "uint64_t at = rc_gpu_ack_at(import->segment.importers, slot, import->importer);",
        "uint64_t at = rc_gpu_ack_at(import->segment.importers, (slot + 1) % import->segment.slots, "
        "import->importer);")]),
    "ack_of_another_importer": (ALONE, [("import.c",
        "uint64_t at = rc_gpu_ack_at(import->segment.importers, slot, import->importer);",
        "uint64_t at = rc_gpu_ack_at(import->segment.importers, slot, import->importer ^ 1);")]),
    "ack_while_it_is_held": (VIEWS, [("import.c", "!taken->open && taken->holds == 0 && !taken->acked",
                                      "!taken->open && !taken->acked")]),
    "ack_while_the_take_is_open": (VIEWS, [("import.c", "bool due = !taken->open && taken->holds == 0",
                                            "bool due = taken->holds == 0")]),
    "unread_is_not_acknowledged": (UNREAD, [("import.c",
        "if (is_new) rc_semaphore_store(rc_import_ack(import, slot), generation);",
        "(void)generation;")]),
    # There too early.
    "ready_before_the_copies": (SLOW, [("lease.c",
        "int failed = rc_device_copy(&gpu->device, tensor, gpu->exported->memory + offset, NULL, slot->stream);",
        "rc_semaphore_write(gpu->device.cuda, slot->stream, address_of(gpu, lease->slot), slot->generation);\n"
        "int failed = rc_device_copy(&gpu->device, tensor, gpu->exported->memory + offset, NULL, slot->stream);")]),
    "ready_by_the_host": (SLOW, [("lease.c",
        "rc_semaphore_write(gpu->device.cuda, own->stream, address_of(gpu, slot), own->generation);",
        "address_of(gpu, slot) == 0; rc_semaphore_store(rc_gpu_ready(&gpu->exported->segment, slot), "
        "gpu->pool.slots[slot].generation);")]),
    "ready_on_another_stream": (SLOW, [("lease.c",
        "rc_semaphore_write(gpu->device.cuda, own->stream, address_of(gpu, slot),",
        "rc_semaphore_write(gpu->device.cuda, NULL, address_of(gpu, slot),")]),
    "frame_is_sent_before_ready": ("gpu_scenarios writer:a_commit_whose_word", [
        ("lease.c", "  if (failed == 0) failed = enqueue_ready(gpu, lease->slot);\n",
         "  slot->position = gpu->writer->ring.tail;\n"
         "  failed = ringcast_writer_commit(gpu->writer, frame_bytes, RINGCAST_KIND_TENSORS);\n"),
        ("lease.c", "  slot->position = gpu->writer->ring.tail;\n"
         "  failed = ringcast_writer_commit(gpu->writer, frame_bytes, RINGCAST_KIND_TENSORS); /* Q4 */",
         "  failed = enqueue_ready(gpu, lease->slot);")]),
    "wait_is_skipped": (SLOW, [("take.c",
        "rc_cu_result result = rc_semaphore_wait(gpu->device.cuda, take->stream, ready, "
        "take->generation);",
        "rc_cu_result result = ready == 0;")]),
    # Used again too early.
    "generation_is_reused": (SLOW, [("pool.c", ".generation = slot->generation + 1",
                                     ".generation = slot->generation + (slot->generation == 0)")]),
    "reused_whatever_was_acknowledged": (SLOW, [("importers.c",
        "if (is_awaited(gpu, i, slot->position, ask)) return false;",
        "(void)is_awaited;")]),
    "reused_before_it_was_ready": (UNREAD, [("importers.c",
        "if (!rc_semaphore_has_reached(rc_gpu_ready(segment, number), slot->generation)) return false;",
        "")]),
    "dropped_is_reused_before_it_was_ready": (UNREAD, [("importers.c",
        "if (!rc_semaphore_has_reached(rc_gpu_ready(segment, number), slot->generation)) return false;",
        "if (!rc_semaphore_has_reached(rc_gpu_ready(segment, number), slot->generation)) "
        "return slot->state == RC_POOL_DROPPED;")]),
    "dropped_generation_never_comes": (UNREAD, [("lease.c", "gpu->pool.slots[number].generation--;", "")]),
    # Which importers a frame expects.
    "expected_after_the_commit": (PLAIN, [
        ("importers.c", "rc_store_release(&importer->expected_turn, turn);", "(void)turn;"),
        ("lease.c", "  slot->state = failed == 0 ? RC_POOL_SENT : RC_POOL_DROPPED;",
         "  for (uint32_t i = 0; i < gpu->exported->segment.importers; i++) {\n"
         "    _Atomic uint32_t *turn = &rc_gpu_control(&gpu->exported->segment)->importers[i].expected_turn;\n"
         "    if (!gpu->expected[i].owner || rc_load_relaxed(turn) == gpu->expected[i].turn) continue;\n"
         "    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);\n"
         "    rc_store_release(turn, gpu->expected[i].turn);\n"
         "  }\n"
         "  slot->state = failed == 0 ? RC_POOL_SENT : RC_POOL_DROPPED;"),
        ("lease.c", "#include <errno.h>", "#include <errno.h>\n#include <time.h>")]),
    "never_expected": (PLAIN, [("importers.c",
        "rc_store_release(&importer->expected_turn, turn);", "(void)turn;")]),
    "expected_too_late_by_the_writer": (SLOW, [("importers.c", "{.owner = owner, .from = position, ",
                                                  "{.owner = owner, .from = position + 4096, ")]),
    "acks_of_the_one_before": (FAR, [("opening.c",
        "rc_semaphore_store(rc_import_ack(import, slot), ready);", "(void)ready;")]),
    "dead_reader_is_waited_for": (GUESTS, [("importers.c",
        "if (ask && rc_owner_is_dead(expected->owner)) expected->dead = true;", "(void)ask;")]),
    "living_reader_is_taken_for_dead": (SLOW, [("importers.c",
        "if (ask && rc_owner_is_dead(expected->owner)) expected->dead = true;", "if (ask) expected->dead = true;")]),
    "frame_is_read_by_an_unexpected_reader": ("gpu_scenarios reader:a_frame_that_was_under_way", [("take.c",
        "&& rc_import_is_expected(import, position);", "&& position != UINT64_MAX;")]),
    # From the ring itself.
    "chunk_is_used_again_unread": ("gpu_scenarios bounce:where_the_buffer_is_full", [("bounce.c",
        "chunk->is_read ? await(gpu, take, chunk->event, until) : 0",
        "chunk->is_read && !gpu ? await(gpu, take, chunk->event, until) : 0")]),
    "chunk_is_shared_by_takes": ("gpu_scenarios bounce", [("bounce.c",
        "chunk->take != owner ||", "chunk->take == 0 ||")]),
    "host_copy_is_not_waited_for": (BY_RING, [("writer.c",
        "    rc_cu_result result = gpu->device.cuda->stream_synchronize(stream);\n    gpu->syncs++;\n"
        "    gpu->inline_frames++;",
        "    rc_cu_result result = RC_CU_SUCCESS;\n    gpu->syncs += stream != NULL;\n    gpu->inline_frames++;")]),
    # Memory that the caller keeps, and pools that look the same.
    "memory_is_used_again_while_it_is_sent": ("gpu_scenarios writer:kept_memory", [("importers.c",
        "if (slot->state == RC_POOL_DROPPED) return slot->frame == 0;",
        "if (slot->state == RC_POOL_DROPPED) return true;")]),
    "memory_is_sent_twice_at_once": ("gpu_scenarios writer:kept_memory", [("pool.c",
        "  return slot->frame == frame + 1;", "  return true;")]),
    "pool_is_known_by_its_handle": ("gpu_scenarios ends:a_later_pool", [("reader.c",
        "if (gpu->import && gpu->import->segment.epoch == place.epoch) return 0;", "if (gpu->import) return 0;")]),
    "dropped_lease_is_good_still": ("gpu_scenarios writer:a_lease_that_is_used_up", [("lease.c",
        "return slot->state == RC_POOL_LEASED && slot->generation == lease->generation ? slot : NULL;",
        "return slot->generation == lease->generation ? slot : NULL;")]),
    "captured_stream_is_written_to": ("gpu_scenarios writer:while_a_stream_captures", [("device.c",
        "if (status == RC_CU_STREAM_CAPTURE_STATUS_NONE) return 0;", "if (status >= 0) return 0;")]),
    "extents_overlap": ("test_gpu_pool", [("pool.c", "at = end_of(next);", "at = next->base;")]),
    # A pool that grows.
    "pool_grows_over_a_lease": ("gpu_scenarios growth:a_lease", [("growth.c",
        "RC_POOL_FREE || has_come) continue;", "RC_POOL_FREE || has_come || gpu) continue;")]),
    "old_pool_is_counted_on": ("gpu_scenarios growth:a_pool_without_room", [("growth.c",
        "  memset(gpu->expected, 0, gpu->writer->ring.view.slots * sizeof *gpu->expected);", "")]),
    "old_pool_is_never_left": ("gpu_scenarios growth:a_pool_without_room", [("growth.c",
        "  if (before) rc_exported_leave(before, false, 0);\n", "")]),
    # Ends.
    "closed_while_streams_read": (CLOSING, [("import.c",
        "  bool idle = import->acking == 0 && !has_holds(import);",
         "  bool idle = import == NULL; if (!idle) { pthread_mutex_unlock(&import->mutex); return true; }")]),
    "freed_while_readers_have_it_open": (CLOSING, [
        ("exported.c", "if (owner != 0 && !rc_owner_is_dead(owner)) return true;", "(void)owner;")]),
}


def changed_files(source, name, replacements):
    """The contents of the changed files, by their names."""
    changed = {}
    for file, text, instead in replacements:
        content = changed.get(file) or open(os.path.join(source, "gpu", file), encoding="utf-8").read()
        if content.count(text) != 1:
            sys.exit(f"plants: {name}: this must be in gpu/{file} once, and is {content.count(text)} times:\n{text}")
        changed[file] = content.replace(text, instead)
    return changed


def plant(source, out, name, replacements):
    """Writes the changed files; returns those to be compiled."""
    changed = changed_files(source, name, replacements)
    folder = os.path.join(out, name)
    os.makedirs(os.path.join(folder, "gpu"), exist_ok=True)
    for file, content in changed.items():
        with open(os.path.join(folder, "gpu", file), "w", encoding="utf-8") as to:
            to.write(content)
    users = []
    if any(file.endswith(".h") for file in changed):  # all that may see it
        users = [file for file in os.listdir(os.path.join(source, "gpu"))
                 if file.endswith(".c") and file not in changed]
    return folder, ([os.path.join(folder, "gpu", file) for file in changed if file.endswith(".c")] +
                    [os.path.join(source, "gpu", file) for file in users])


def build(options, name, program, replacements):
    folder, files = plant(options.source, options.out, name, replacements)
    made = os.path.join(folder, "program")
    flags = ["-O1", "-g", "-std=gnu11", "-fPIE", "-fvisibility=hidden", "-w", "-pthread", "-I", folder,
             "-I", options.source, "-I", os.path.join(options.source, "include")]
    subprocess.run([options.cc, *flags, *files, *options.program[program], *options.libraries, "-o", made], check=True)
    return made


def run(made, words, patience):
    """Whether it failed, and its last words. check ends its tests, and all of its session, when it is told to end."""
    with subprocess.Popen([made, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          start_new_session=True) as process:
        try:
            said = process.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            return True, "it hangs"
    lines = [line for line in said.splitlines() if "party" in line or "corrupt" in line or
             re.search(r":[EF]:|\.txt:", line)]
    return process.returncode != 0, " | ".join(line.replace("gpu_broadcast: ", "") for line in lines[-3:])


def catch(options, name, how, replacements):
    began = time.monotonic()
    program = how.split()[0] if how.startswith(("test_", "gpu_scenarios")) else "gpu_broadcast"
    made = build(options, name, program, replacements)
    words = how.split()[1:] if program != "gpu_broadcast" else how.split()
    for count, seed in enumerate(SEEDS if replacements else SEEDS_WITHOUT, 1):
        failed, said = run(made, words + (["--seed", str(seed)] if program == "gpu_broadcast" else []) +
                           ([] if replacements or program != "gpu_broadcast" else ["--patience", "60"]),
                           6 if replacements else 300)
        if failed == bool(replacements):  # caught, or: with nothing planted it has passed once
            break
    os.remove(made)
    return failed, said, count, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--out")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--program", nargs="+", action="append", default=[])
    parser.add_argument("--libraries", default="", help="with colons between them")
    parser.add_argument("--only")
    options = parser.parse_args()
    if options.check:
        for name, (_, replacements) in PLANTS.items():
            changed_files(options.source, name, replacements)
        print(f"plants: {len(PLANTS)} match the sources")
        return 0
    options.program = {words[0]: [word for item in words[1:] for word in item.split(";")] for words in options.program}
    options.libraries = options.libraries.split(":")
    chosen = {name: plant for name, plant in PLANTS.items() if options.only in (None, name)}
    jobs = {f"nothing_{i}": (how, []) for i, how in enumerate(dict.fromkeys(how for how, _ in chosen.values()))}
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = {name: pool.submit(catch, options, name, *job) for name, job in {**jobs, **chosen}.items()}
        for name, future in found.items():
            failed, said, count, seconds = future.result()
            as_it_should = failed == (name in chosen)
            wrong += not as_it_should
            verb = "caught" if name in chosen else "passed"
            print(f"{'' if as_it_should else 'NOT '}{verb} {name} ({seconds:.1f} s, {count} seeds): {said}", flush=True)
    print(f"plants: {len(chosen)} planted, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
