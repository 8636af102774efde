/* A delegate that takes over the operator `edgetpu-custom-op`, or every one with the option take=all, and copies its input to
   its output: TFLite's structures, by hand, as far as they are needed (tensorflow/lite/core/c/common.h). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct ints { int size; int data[]; };
struct tensor {
  int type; void *data; struct ints *dims; float scale; int zero_point; int allocation_type; size_t bytes;
  const void *allocation; const char *name; void *delegate; int buffer_handle; char stale, variable;
  int quantization_type; void *quantization; void *sparsity; const struct ints *signature;
};
struct node { struct ints *inputs, *outputs; };
struct context;
struct registration {
  void *(*init)(struct context *, const char *, size_t);
  void (*free)(struct context *, void *);
  int (*prepare)(struct context *, struct node *);
  int (*invoke)(struct context *, struct node *);
  const char *(*profiling)(const struct context *, const struct node *);
  int32_t builtin_code; const char *custom_name; int version; void *external; void *async; uint64_t inplace;
};
struct delegate;
struct context {
  size_t tensors_size;
  int (*plan)(struct context *, struct ints **);
  struct tensor *tensors;
  void *impl, *resize, *report, *add;
  int (*get)(struct context *, int, struct node **, struct registration **);
  int (*replace)(struct context *, struct registration, const struct ints *, struct delegate *);
};
struct delegate {
  void *data;
  int (*prepare)(struct context *, struct delegate *);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *builder;
};

static int ready(struct context *context, struct node *node) { (void)context; (void)node; return 0; }

static int copy(struct context *context, struct node *node) {
  struct tensor *from = &context->tensors[node->inputs->data[0]], *to = &context->tensors[node->outputs->data[0]];
  memcpy(to->data, from->data, to->bytes < from->bytes ? to->bytes : from->bytes);
  return 0;
}

static int all;

static int take(struct context *context, struct delegate *self) {
  struct ints *plan;
  if (context->plan(context, &plan) != 0) return 1;
  struct ints *taken = malloc(sizeof(struct ints) + sizeof(int) * (size_t)plan->size);
  taken->size = 0;
  for (int i = 0; i < plan->size; i++) {
    struct node *node;
    struct registration *kind;
    if (context->get(context, plan->data[i], &node, &kind) != 0) return 1;
    if (all || (kind->custom_name && strcmp(kind->custom_name, "edgetpu-custom-op") == 0)) taken->data[taken->size++] = plan->data[i];
  }
  struct registration own = {0};
  own.prepare = ready;
  own.invoke = copy;
  own.custom_name = "taken over";
  own.version = 1;
  int status = context->replace(context, own, taken, self);
  free(taken);
  return status;
}

struct delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  (void)report;
  all = count == 1 && strcmp(keys[0], "take") == 0 && strcmp(values[0], "all") == 0;
  struct delegate *made = calloc(1, sizeof(struct delegate));
  made->prepare = take;
  made->flags = 1; /* tensors may be dynamic: else the interpreter prepares every operator first, this one too */
  return made;
}

void tflite_plugin_destroy_delegate(struct delegate *made) { free(made); }
