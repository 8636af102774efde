/* __TITLE__: written by edgekit export, for this model's contract alone. C99, ONNX Runtime's C API.

    predict_open("model.onnx")...           once; then no call below allocates
//? picture
    predict_size(1280, 720)                 once for pictures of a size: this allocates too
    predict(rgb, answers)                   how many answers there are
//.
//? not picture
    predict(item, answers)                  how many answers there are
//.

   One model a process, and one call at a time. A negative number is an error; predict_error() says which. */
#ifndef PREDICT_H
#define PREDICT_H
#include <stdint.h>

//? classes
/* The best classes, best first; the label of a class without a name is empty. */
#define PREDICT_MOST __BEST__
typedef struct {
    const char *label;
    int index;
    float score;
} predict_answer;
//.
//? boxes
/* Boxes, best first, in pixels of the picture; the label of a class without a name is empty. */
#define PREDICT_MOST __MOST_BOXES__
typedef struct {
    const char *label;
    int index;
    float score, left, top, right, bottom;
} predict_answer;
//.
//? vector
/* The numbers of the vector. */
#define PREDICT_MOST __VECTOR_SIZE__
typedef float predict_answer;
//.
//? raw
/* All outputs, one behind the other. */
#define PREDICT_MOST __VALUES__
typedef float predict_answer;
//.
/* The numbers of an item: __ITEM__. */
#define PREDICT_ITEM __ITEM_SIZE__
typedef __ITEM_TYPE__ predict_item;

int predict_open(const char *model);
//? picture
int predict_size(int width, int height);
/* rgb: width * height * 3 bytes, upright. */
int predict(const uint8_t *rgb, predict_answer answers[PREDICT_MOST]);
/* The network's pixels, PREDICT_ITEM of them, of a picture. */
const predict_item *predict_pixels(const uint8_t *rgb);
//.
//? not picture
int predict(const predict_item *item, predict_answer answers[PREDICT_MOST]);
//.
/* All outputs of one item, one behind the other, as floats; NULL for an error. */
const float *predict_run(const predict_item *item);
const char *predict_error(void);
void predict_close(void);
#endif
