/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/process/gpu/broadcast.h"

enum { THREADS = 2, MOST_VIEWS = 6 };

struct view {
  ringcast_gpu_hold *hold;
  rc_cu_ptr where;
  rc_cu_stream stream;
  uint64_t message;
  uint32_t item;
};

struct views {
  struct stage *stage;
  pthread_mutex_t mutex;
  pthread_cond_t change;
  struct view queue[MOST_VIEWS];
  uint32_t count;
  bool ends;
  uint32_t marks; /* the first; one of each thread */
  struct viewer {
    struct views *views;
    pthread_t thread;
    uint32_t mark;
    uint64_t value;
    void *host;
  } viewers[THREADS];
};

/* Reads it late, in the order of its stream, and lets go of it before that has been done. */
static void look_at(struct viewer *viewer, const struct view *view, struct dice *dice) {
  struct stage *stage = viewer->views->stage;
  struct plan plan;
  plan_make(&plan, view->message);
  const struct item *item = &plan.items[view->item];
  nap(throw(dice, 3 * options.slow + 1));
  must(stage->cuda->copy_dtoh(viewer->host, view->where, item->bytes, view->stream) == 0);
  stage_mark(stage, viewer->mark, ++viewer->value, view->stream);
  long waits = waits_so_far();
  ringcast_gpu_unmap(view->hold);
  if (waits_so_far() != waits) give_up("unmap has waited for a device");
  stage_await(stage, viewer->mark, viewer->value);
  self->checked++;
  if (!plan_matches(item, viewer->host)) self->corrupt++;
  step();
}

static bool take(struct views *views, struct view *out) {
  pthread_mutex_lock(&views->mutex);
  while (views->count == 0 && !views->ends) pthread_cond_wait(&views->change, &views->mutex);
  bool found = views->count > 0;
  if (found) {
    *out = views->queue[0];
    views->count--;
    memmove(&views->queue[0], &views->queue[1], views->count * sizeof *out);
  }
  pthread_mutex_unlock(&views->mutex);
  return found;
}

static void *work(void *context) {
  struct viewer *viewer = context;
  struct stage *stage = viewer->views->stage;
  struct dice dice = dice_of(6, viewer->mark);
  struct view view;
  must(stage->cuda->ctx_push(stage->context) == 0);
  while (take(viewer->views, &view)) look_at(viewer, &view, &dice);
  return NULL;
}

struct views *views_start(struct stage *stage, uint32_t first_mark) {
  struct views *views = calloc(1, sizeof *views);
  views->stage = stage;
  pthread_mutex_init(&views->mutex, NULL);
  pthread_cond_init(&views->change, NULL);
  for (uint32_t i = 0; i < THREADS; i++) {
    struct viewer *viewer = &views->viewers[i];
    *viewer = (struct viewer){.views = views, .mark = first_mark + i, .host = stage_host(stage, plan_most())};
    must(pthread_create(&viewer->thread, NULL, work, viewer) == 0);
  }
  return views;
}

bool views_have_room(struct views *views) {
  pthread_mutex_lock(&views->mutex);
  bool has = views->count < MOST_VIEWS;
  pthread_mutex_unlock(&views->mutex);
  return has;
}

void views_add(struct views *views, ringcast_gpu_hold *hold, rc_cu_ptr where, rc_cu_stream stream, uint64_t message,
               uint32_t item) {
  pthread_mutex_lock(&views->mutex);
  views->queue[views->count++] = (struct view){hold, where, stream, message, item};
  pthread_cond_signal(&views->change);
  pthread_mutex_unlock(&views->mutex);
}

void views_end(struct views *views) {
  pthread_mutex_lock(&views->mutex);
  views->ends = true;
  pthread_cond_broadcast(&views->change);
  pthread_mutex_unlock(&views->mutex);
  for (uint32_t i = 0; i < THREADS; i++) {
    pthread_join(views->viewers[i].thread, NULL);
    stage_host_free(views->stage, views->viewers[i].host, plan_most());
  }
  pthread_mutex_destroy(&views->mutex);
  pthread_cond_destroy(&views->change);
  free(views);
}
