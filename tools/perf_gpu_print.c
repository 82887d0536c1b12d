/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli.h"
#include "tools/perf_gpu.h"

enum { ALL = (1 << GPU_WAYS) - 1, RINGS = (1 << GPU_RINGS) - 1, POOL = 1 << GPU_POOL, DTOD = 1 << GPU_DTOD };

static const char *const ways[GPU_WAYS] = {"pool", "inline", "device_to_device", "host_to_device"};

static const struct {
  const char *key, *title;
  double unit; /* of the title, in units of the key */
  int ways;    /* that have this figure */
} figures_of[GPU_FIGURES] = {
    [GPU_SEND] = {"send_us", "send, us", 1, ALL},
    [GPU_RECEIVE] = {"receive_us", "receive, us", 1, RINGS},
    [GPU_COMPLETION] = {"completion_us", "completion, us", 1, ALL},
    [GPU_RATE] = {"bytes_per_s", "GB/s", 1e9, ALL},
    [GPU_COPY_IN] = {"writer_copy_bytes_per_s", "copy in, GB/s", 1e9, POOL},
    [GPU_COPY_OUT] = {"reader_copy_bytes_per_s", "copy out", 1e9, POOL},
    [GPU_COPY_RATIO] = {"ratio_to_device_to_device", "to plain", 1, POOL},
    [GPU_COPY] = {"copy_bytes_per_s", "plain, GB/s", 1e9, DTOD},
};

/* The writer knows that a reader has no pool; the reader knows the words of the driver. */
static const char *why_no_pool(const struct gpu_figures *figures) {
  const struct ringcast_gpu_info *reader = &figures->readers[GPU_POOL];
  return reader->way == RINGCAST_GPU_WAY_REFUSED && *reader->why ? reader->why : figures->writers[GPU_POOL].why;
}

/* Without MPS, the contexts of several processes take turns on a device. */
static bool has_mps(void) {
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[512];
  snprintf(path, sizeof path, "%s/control", folder ? folder : "/tmp/nvidia-mps");
  return access(path, F_OK) == 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void json_info(struct json *json, const char *key, const struct ringcast_gpu_info *info) {
  const struct {
    const char *key;
    uint64_t value;
  } counts[] = {{"way", info->way},
                {"pool_bytes", info->pool_bytes},
                {"slots", info->slots},
                {"pool_frames", info->pool_frames},
                {"inline_frames", info->inline_frames},
                {"full", info->full},
                {"opens", info->opens},
                {"syncs", info->syncs}};
  json_open(json, key, '{');
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    json_integer(json, counts[i].key, (int64_t)counts[i].value);
  json_string(json, "why", info->why);
  json_boolean(json, "registered", info->registered);
  json_close(json, '}');
}

static void json_size(struct json *json, const struct gpu_size_figures *size) {
  json_open(json, NULL, '{');
  json_integer(json, "bytes", (int64_t)size->bytes);
  for (int way = 0; way < GPU_WAYS; way++) {
    if (size->rounds[way] == 0) continue;
    json_open(json, ways[way], '{');
    json_integer(json, "rounds", (int64_t)size->rounds[way]);
    for (int i = 0; i < GPU_FIGURES; i++)
      if (figures_of[i].ways & 1 << way) json_number(json, figures_of[i].key, size->of[way][i]);
    json_close(json, '}');
  }
  json_close(json, '}');
}

static void print_json(const struct perf_options *options, const struct gpu_figures *figures) {
  struct json json = {.out = stdout};
  char cpu[256];
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
  json_string(&json, "device_shared_by", has_mps() ? "MPS" : "time slices");
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

static void print_way(const struct gpu_size_figures *size, int way) {
  printf("%12" PRIu64 " %-17s", size->bytes, ways[way]);
  for (int i = 0; i < GPU_FIGURES; i++) {
    bool has = figures_of[i].ways & 1 << way && !isnan(size->of[way][i]);
    has ? printf("%15.2f", size->of[way][i] / figures_of[i].unit) : printf("%15s", "");
  }
  putchar('\n');
}

static void print_text(const struct perf_options *options, const struct gpu_figures *figures) {
  printf("ringcast %s, tensors of a GPU, one process to %u others on %s, a driver for CUDA %d.%d\n\n%12s %-17s",
         ringcast_version(), options->readers, figures->device.name, figures->status.version / 1000,
         figures->status.version % 1000 / 10, "bytes", "way");
  for (int i = 0; i < GPU_FIGURES; i++) printf("%15s", figures_of[i].title);
  putchar('\n');
  for (int i = 0; i < figures->size_count; i++)
    for (int way = 0; way < GPU_WAYS; way++)
      if (figures->sizes[i].rounds[way] > 0) print_way(&figures->sizes[i], way);
  if (!figures->pool) printf("\nno pool was used: %s\n", why_no_pool(figures));
  printf("\n%u processes shared one device by %s: times of completion contain %s.\n"
         "Which size is faster by POOL than INLINE between two devices does not follow from that.\n",
         options->readers + 1, has_mps() ? "MPS" : "time slices",
         has_mps() ? "each other's work" : "the switches between their contexts");
  printf("readers with the pool: %" PRIu64 " handles opened, %" PRIu64 " waits for the device\n"
         "free on the device: %" PRIu64 " MiB before, %" PRIu64 " with all open (each process has a context), %" PRIu64
         " at the end\n",
         figures->readers[GPU_POOL].opens, figures->readers[GPU_POOL].syncs, figures->free_before >> 20,
         figures->free_open >> 20, figures->free_after >> 20);
}

void gpu_print(const struct perf_options *options, const struct gpu_figures *figures) {
  options->json ? print_json(options, figures) : print_text(options, figures);
}
