/* A delegate that takes nothing over, and two that do not start: the interface of TFLite's external delegates, by hand.

   TfLiteDelegate begins with: user data, Prepare(context, delegate), three buffer functions, flags, an opaque builder.
   Prepare returns 0 when all is well; it may leave every node to the interpreter. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct delegate {
  void *data;
  int (*prepare)(void *context, struct delegate *self);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *builder;
};

static int takes_nothing(void *context, struct delegate *self) {
  (void)context;
  (void)self;
  return 0;
}

static int refuses_the_graph(void *context, struct delegate *self) {
  (void)context;
  (void)self;
  return 1;
}

static int crashes(void *context, struct delegate *self) {
  (void)context;
  (void)self;
  abort();
}

struct delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  struct delegate *made = calloc(1, sizeof(struct delegate));
  made->prepare = takes_nothing;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(keys[i], "mode") != 0) continue;
    if (strcmp(values[i], "missing") == 0) {
      report("no accelerator is plugged in");
      free(made);
      return NULL;
    }
    if (strcmp(values[i], "refuse") == 0) made->prepare = refuses_the_graph;
    if (strcmp(values[i], "crash") == 0) made->prepare = crashes;
  }
  return made;
}

void tflite_plugin_destroy_delegate(struct delegate *made) { free(made); }
