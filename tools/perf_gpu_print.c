/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/perf_gpu.h"

static const char *const names[GPU_WAYS] = {"pool", "inline", "device_to_device", "host_to_device"};
/* The writer knows that a reader has no pool; the reader knows the words of the driver. */
static const char *why_no_pool(const struct gpu_figures *figures) {
  const struct ringcast_gpu_info *reader = &figures->readers[GPU_POOL];
  return reader->way == RINGCAST_GPU_WAY_REFUSED && *reader->why ? reader->why : figures->writers[GPU_POOL].why;
}

static const char *const titles[GPU_WAYS] = {"POOL", "INLINE", "within the device", "host to device"};

uint64_t gpu_crossover(const struct gpu_figures *figures) {
  uint64_t from = 0, above = UINT64_MAX;
  for (int left = figures->size_count; figures->pool && left > 0; left--) { /* from the largest down */
    const struct gpu_size_figures *size = NULL;
    for (int i = 0; i < figures->size_count; i++)
      if (figures->sizes[i].bytes < above && (!size || figures->sizes[i].bytes > size->bytes))
        size = &figures->sizes[i];
    if (!size || !(size->ways[GPU_POOL].completion_us < size->ways[GPU_INLINE].completion_us)) break;
    from = above = size->bytes;
  }
  return from;
}

double gpu_copy_ratio(const struct gpu_size_figures *size) {
  const double *pool = size->ways[GPU_POOL].copy_bytes_per_s;
  return (pool[0] < pool[1] ? pool[0] : pool[1]) / size->ways[GPU_DTOD].copy_bytes_per_s[0];
}

static uint64_t largest_below(const struct gpu_figures *figures, uint64_t bytes) {
  uint64_t largest = 0;
  for (int i = 0; i < figures->size_count; i++)
    if (figures->sizes[i].bytes < bytes && figures->sizes[i].bytes > largest) largest = figures->sizes[i].bytes;
  return largest;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void json_info(struct json *json, const char *key, const struct ringcast_gpu_info *info) {
  json_open(json, key, '{');
  json_integer(json, "way", info->way);
  json_string(json, "why", info->why);
  json_integer(json, "word_bits", info->word_bits);
  json_integer(json, "pool_bytes", (int64_t)info->pool_bytes);
  json_integer(json, "slots", info->slots);
  json_integer(json, "pool_frames", (int64_t)info->pool_frames);
  json_integer(json, "inline_frames", (int64_t)info->inline_frames);
  json_integer(json, "full", (int64_t)info->full);
  json_integer(json, "opens", (int64_t)info->opens);
  json_integer(json, "syncs", (int64_t)info->syncs);
  json_boolean(json, "registered", info->registered);
  json_close(json, '}');
}

static void json_size(struct json *json, const struct gpu_size_figures *size) {
  json_open(json, NULL, '{');
  json_integer(json, "bytes", (int64_t)size->bytes);
  for (int way = 0; way < GPU_WAYS; way++) {
    const struct gpu_way_figures *figures = &size->ways[way];
    if (!figures->measured) continue;
    json_open(json, names[way], '{');
    json_integer(json, "rounds", (int64_t)figures->rounds);
    json_number(json, "send_us", figures->send_us);
    if (way < GPU_RINGS) json_number(json, "receive_us", figures->receive_us);
    json_number(json, "completion_us", figures->completion_us);
    json_number(json, "bytes_per_s", figures->bytes_per_s);
    if (way == GPU_POOL) {
      json_number(json, "writer_copy_bytes_per_s", figures->copy_bytes_per_s[0]);
      json_number(json, "reader_copy_bytes_per_s", figures->copy_bytes_per_s[1]);
      json_number(json, "ratio_to_device_to_device", gpu_copy_ratio(size));
    } else if (way == GPU_DTOD) {
      json_number(json, "copy_bytes_per_s", figures->copy_bytes_per_s[0]);
    }
    json_close(json, '}');
  }
  json_close(json, '}');
}

static void print_json(const struct perf_options *options, const struct gpu_figures *figures) {
  struct json json = {.out = stdout};
  char cpu[256];
  uint64_t from = gpu_crossover(figures);
  json_open(&json, NULL, '{');
  json_string(&json, "measurement", options->name);
  json_string(&json, "version", ringcast_version());
  json_string(&json, "cpu", cli_cpu_model(cpu, sizeof cpu));
  json_string(&json, "device", figures->device.name);
  json_integer(&json, "driver", figures->status.version);
  json_integer(&json, "readers", options->readers);
  json_number(&json, "seconds", options->seconds);
  json_boolean(&json, "pool", figures->pool);
  json_string(&json, "why", figures->pool ? "" : why_no_pool(figures));
  json_integer(&json, "pool_from_bytes", from ? (int64_t)from : -1);
  json_integer(&json, "inline_most", from ? (int64_t)largest_below(figures, from) : -1);
  json_open(&json, "sizes", '[');
  for (int i = 0; i < figures->size_count; i++) json_size(&json, &figures->sizes[i]);
  json_close(&json, ']');
  for (int i = 0; i < GPU_RINGS; i++) {
    json_open(&json, i == GPU_POOL ? "ring_with_pool" : "ring_without", '{');
    json_info(&json, "writer", &figures->writers[i]);
    json_info(&json, "readers", &figures->readers[i]);
    json_close(&json, '}');
  }
  json_open(&json, "device_free_bytes", '{');
  json_integer(&json, "before", (int64_t)figures->free_before);
  json_integer(&json, "open", (int64_t)figures->free_open);
  json_integer(&json, "after", (int64_t)figures->free_after);
  json_close(&json, '}');
  json_close(&json, '}');
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

static void text_bytes(uint64_t bytes, char *out, size_t size) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; bytes >= 1024 && bytes % 1024 == 0 && unit < 3; unit++) bytes /= 1024;
  snprintf(out, size, "%" PRIu64 " %s", bytes, units[unit]);
}

static void print_copies(const struct gpu_size_figures *size, enum gpu_way way) {
  const double *copies = size->ways[way].copy_bytes_per_s;
  if (way == GPU_POOL && !isnan(copies[0]))
    printf("   %.2f in, %.2f out, %.2f of a plain one", copies[0] / 1e9, copies[1] / 1e9, gpu_copy_ratio(size));
  else if (!isnan(copies[0])) printf("   %.2f", copies[0] / 1e9);
  putchar('\n');
}

static void print_sizes(const struct gpu_figures *figures) {
  printf("%10s  %-18s %10s %12s %14s %10s   %s\n", "", "", "send, us", "receive, us", "completion, us", "GB/s",
         "copies alone, GB/s");
  for (int i = 0; i < figures->size_count; i++) {
    char bytes[32];
    text_bytes(figures->sizes[i].bytes, bytes, sizeof bytes);
    for (int way = 0; way < GPU_WAYS; way++) {
      const struct gpu_way_figures *found = &figures->sizes[i].ways[way];
      if (!found->measured) continue;
      printf("%10s  %-18s %10.2f ", bytes, titles[way], found->send_us);
      way < GPU_RINGS ? printf("%12.2f", found->receive_us) : printf("%12s", "");
      printf(" %14.2f %10.2f", found->completion_us, found->bytes_per_s / 1e9);
      print_copies(&figures->sizes[i], (enum gpu_way)way);
      bytes[0] = '\0';
    }
  }
}

static void print_counts(const char *side, const struct ringcast_gpu_info *pool,
                         const struct ringcast_gpu_info *other) {
  printf("%s: %" PRIu64 " handles opened, %" PRIu64 " waits for the device with the pool, %" PRIu64 " without it; the "
         "ring's memory is %s\n",
         side, pool->opens, pool->syncs, other->syncs, pool->registered ? "registered" : "not registered");
}

static void print_text(const struct perf_options *options, const struct gpu_figures *figures) {
  const struct ringcast_gpu_info *writer = &figures->writers[GPU_POOL];
  uint64_t from = gpu_crossover(figures);
  char bytes[32];
  printf("ringcast %s, tensors of a GPU, one process to %u other%s on %s, a driver for CUDA %d.%d\n\n",
         ringcast_version(), options->readers, options->readers == 1 ? "" : "s", figures->device.name,
         figures->status.version / 1000, figures->status.version % 1000 / 10);
  print_sizes(figures);
  text_bytes(from, bytes, sizeof bytes);
  if (!figures->pool) printf("\nno pool was used: %s\n", why_no_pool(figures));
  else if (from)
    printf("\nPOOL takes less time than INLINE from %s on: inline_most = %" PRIu64 "\n", bytes,
           largest_below(figures, from));
  else printf("\nPOOL takes no less time than INLINE at the largest size\n");
  print_counts("writer", writer, &figures->writers[GPU_INLINE]);
  print_counts("readers", &figures->readers[GPU_POOL], &figures->readers[GPU_INLINE]);
  printf("free on the device: %.1f MiB before, %.1f with all open (each process has a context of its own), %.1f at the "
         "end\n",
         (double)figures->free_before / (1 << 20), (double)figures->free_open / (1 << 20),
         (double)figures->free_after / (1 << 20));
}

void gpu_print(const struct perf_options *options, const struct gpu_figures *figures) {
  options->json ? print_json(options, figures) : print_text(options, figures);
}
