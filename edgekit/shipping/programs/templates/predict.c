/* See predict.h. */
#include "predict.h"

#include <math.h>
#include <onnxruntime_c_api.h>
#include <stdlib.h>
#include <string.h>

//? labels
#include "labels.h"

#define LABEL(index) ((index) < (int)(sizeof LABELS / sizeof *LABELS) ? LABELS[index] : "")
//.
//? not labels
#define LABEL(index) ""
//.
#define OUTPUTS __OUTPUT_COUNT__

static const OrtApi *ort;
static OrtEnv *env;
static OrtSession *session;
static OrtMemoryInfo *memory;
static OrtValue *input, *outputs[OUTPUTS];
static char failure[256];

static __TYPE__ tensor[PREDICT_ITEM];
static float values[__VALUES__];
//? not floats
static int64_t raw[__RAW_WORDS__];
//.

const char *predict_error(void) { return failure; }

static int fail(const char *what) {
    strncpy(failure, what, sizeof failure - 1);
    return -1;
}

static int failed(OrtStatus *status) {
    if (status == NULL) return 0;
    fail(ort->GetErrorMessage(status));
    ort->ReleaseStatus(status);
    return 1;
}

static int make(OrtValue **value, void *data, size_t bytes, const int64_t *shape, size_t axes, ONNXTensorElementDataType type) {
    return failed(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape, axes, type, value));
}

//? picture
#define WIDTH __WIDTH__
#define HEIGHT __HEIGHT__
#define CHANNELS __CHANNELS__

static __TYPE__ table[CHANNELS][256]; /* a pixel -> what the model takes */

static void fill_table(void) {
//? quantized
    static const float mean[] = {__MEAN__}, std[] = {__STD__};
    for (int c = 0; c < CHANNELS; c++)
        for (int pixel = 0; pixel < 256; pixel++) {
            float real = ((float)pixel - mean[c]) / std[c];
            table[c][pixel] = (__TYPE__)fmax(__LEAST__, fmin(__MOST__, rintf(real / (float)__SCALE__) + __ZERO__));
        }
//.
//? not quantized
    static const float factor[] = {__FACTOR__}, term[] = {__TERM__}; /* (pixel - mean) / std */
    for (int c = 0; c < CHANNELS; c++)
        for (int pixel = 0; pixel < 256; pixel++) {
            float scaled = (float)pixel * factor[c];
            table[c][pixel] = (__TYPE__)(scaled + term[c]);
        }
//.
}

static void fill_tensor(const predict_item *pixels) {
    for (int at = 0; at < WIDTH * HEIGHT; at++)
        for (int c = 0; c < CHANNELS; c++)
            tensor[c * __CHANNEL_STEP__ + at * __PIXEL_STEP__] = table[c][pixels[at * CHANNELS + c]];
}
//.
//? not picture
static void fill_tensor(const predict_item *item) {
    for (int at = 0; at < PREDICT_ITEM; at++)
//? quantized
        tensor[at] = (__TYPE__)fmax(__LEAST__, fmin(__MOST__, rintf(item[at] / (float)__SCALE__) + __ZERO__));
//.
//? not quantized
        tensor[at] = (__TYPE__)item[at];
//.
}
//.

static int start(const char *model) {
    static const int64_t shape[] = {__SHAPE__};
    OrtSessionOptions *options = NULL;
    if (failed(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "predict", &env))) return -1;
    if (failed(ort->CreateSessionOptions(&options))) return -1;
    /* or 8 bits saturate on x86 without VNNI */
    int wrong = failed(ort->AddSessionConfigEntry(options, "session.x64quantprecision", "1"))
        || failed(ort->CreateSession(env, model, options, &session));
    ort->ReleaseSessionOptions(options);
    if (wrong || failed(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory))) return -1;
    if (make(&input, tensor, sizeof tensor, shape, sizeof shape / sizeof *shape, __ORT_TYPE__)) return -1;
__MAKE_OUTPUTS__
    return 0;
}

int predict_open(const char *model) {
    predict_close();
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (ort == NULL) return fail("this ONNX Runtime is older than the header that predict.c was compiled with");
//? picture
    fill_table();
//.
    if (start(model) == 0) return 0;
    predict_close();
    return -1;
}

const float *predict_run(const predict_item *item) {
    static const char *const names[] = {__INPUT__}, *const answers[] = {__OUTPUT_TENSORS__};
    const OrtValue *given = input;
    if (session == NULL) return fail("predict_open() comes first"), (const float *)NULL;
    fill_tensor(item);
    if (failed(ort->Run(session, NULL, names, &given, 1, answers, OUTPUTS, outputs))) return NULL;
//? not floats
__REAL__
//.
    return values;
}

//? picture
typedef struct {
    int *first, *count;
    int32_t *weights;
    int most;
} taps; /* of each new pixel the old ones and their weights, in 2 ** -22ths: Pillow's __INTERPOLATION__ filter */

static int width, height, left, top, cut_w, cut_h, inner_w, inner_h, x0, y0;
static taps across, down;
static int tall;
static uint8_t *cut, *between, scaled[PREDICT_ITEM], pixels[PREDICT_ITEM];

//? not stretch
static int at_least_one(double x) { return x < 1 ? 1 : (int)rint(x); }

//.
/* The part of the picture that is used, the size that becomes, and the corner on the network's canvas. */
static void place(void) {
    left = top = x0 = y0 = 0;
    cut_w = width, cut_h = height, inner_w = WIDTH, inner_h = HEIGHT;
//? crop
    double scale = fmin((double)width / WIDTH, (double)height / HEIGHT) * __CROP__;
    cut_w = at_least_one(WIDTH * scale), cut_h = at_least_one(HEIGHT * scale);
    left = (width - cut_w) / 2, top = (height - cut_h) / 2;
//.
//? letterbox
    double scale = fmin((double)WIDTH / width, (double)HEIGHT / height);
    inner_w = at_least_one(width * scale), inner_h = at_least_one(height * scale);
    x0 = (WIDTH - inner_w) / 2, y0 = (HEIGHT - inner_h) / 2;
//.
    tall = __TALL_FIRST__ && cut_h > inner_h && cut_h - inner_h > 2 * (cut_w - inner_w); /* then columns first are less to do */
}

static void free_taps(taps *t) {
    free(t->first);
    free(t->count);
    free(t->weights);
    memset(t, 0, sizeof *t);
}

static int make_taps(taps *t, int from, int to) {
    double step = (double)from / to, wide = step > 1 ? step : 1, reach = __REACH__ * wide;
    t->most = (int)ceil(reach) * 2 + 2;
    t->first = malloc((size_t)to * sizeof *t->first);
    t->count = malloc((size_t)to * sizeof *t->count);
    t->weights = malloc((size_t)to * (size_t)t->most * sizeof *t->weights);
    double *real = malloc((size_t)t->most * sizeof *real);
    if (t->first == NULL || t->count == NULL || t->weights == NULL || real == NULL) {
        free(real);
        return fail("too little memory for pictures of this size");
    }
//? nearest
    double middle = step * 0.5;
//.
    for (int at = 0; at < to; at++) {
        int32_t *weights = t->weights + (size_t)at * (size_t)t->most;
//? nearest
        t->first[at] = (int)middle, t->count[at] = 1, weights[0] = 1 << 22;
        middle += step;
//.
//? not nearest
        double centre = (at + 0.5) * step, sum = 0;
        int first = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
        if (first < 0) first = 0;
        if (end > from) end = from;
        for (int i = first; i < end; i++) {
            double x = fabs((i - centre + 0.5) * (1 / wide));
//? bilinear
            real[i - first] = x < 1 ? 1 - x : 0;
//.
//? bicubic
            real[i - first] = x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
//.
            sum += real[i - first];
        }
        for (int i = 0; i < end - first; i++)
            weights[i] = (int32_t)(real[i] / sum * (1 << 22) + (real[i] < 0 ? -0.5 : 0.5));
        t->first[at] = first, t->count[at] = end - first;
//.
    }
    free(real);
    return 0;
}

static void free_size(void) {
    free_taps(&across);
    free_taps(&down);
    free(cut);
    free(between);
    cut = between = NULL;
    width = height = 0;
}

int predict_size(int w, int h) {
    free_size();
    if (w < 1 || h < 1 || w > 65535 || h > 65535 || (int64_t)w * h > 1 << 25) return fail("not a picture's size");
    width = w, height = h;
    place();
    cut = malloc((size_t)cut_w * (size_t)cut_h * CHANNELS);
    between = malloc((size_t)(tall ? cut_w : inner_w) * (size_t)(tall ? inner_h : cut_h) * CHANNELS);
    if (cut != NULL && between != NULL && make_taps(&across, cut_w, inner_w) == 0 && make_taps(&down, cut_h, inner_h) == 0)
        return 0;
    free_size();
    return fail("too little memory for pictures of this size");
}

static uint8_t eight_bits(int32_t sum) {
    if (sum < 0) return 0;
    return sum >> 22 > 255 ? 255 : (uint8_t)(sum >> 22);
}

/* The rows of a picture in the network's width. */
static void scale_across(const uint8_t *from, int high, uint8_t *to) {
    for (int y = 0; y < high; y++, from += (size_t)cut_w * CHANNELS)
        for (int x = 0; x < inner_w; x++)
            for (int c = 0; c < CHANNELS; c++) {
                const int32_t *weights = across.weights + (size_t)x * (size_t)across.most;
                int32_t sum = 1 << 21;
                for (int i = 0; i < across.count[x]; i++) sum += from[(across.first[x] + i) * CHANNELS + c] * weights[i];
                *to++ = eight_bits(sum);
            }
}

/* The columns of a picture in the network's height. */
static void scale_down(const uint8_t *from, int wide, uint8_t *to) {
    size_t row = (size_t)wide * CHANNELS;
    for (int y = 0; y < inner_h; y++)
        for (size_t at = 0; at < row; at++) {
            const int32_t *weights = down.weights + (size_t)y * (size_t)down.most;
            int32_t sum = 1 << 21;
            for (int i = 0; i < down.count[y]; i++) sum += from[(size_t)(down.first[y] + i) * row + at] * weights[i];
            *to++ = eight_bits(sum);
        }
}

const predict_item *predict_pixels(const uint8_t *rgb) {
    if (width == 0) return fail("predict_size() comes first"), (const predict_item *)NULL;
    uint8_t *to = cut;
    for (int y = 0; y < cut_h; y++) {
        const uint8_t *from = rgb + ((size_t)(top + y) * (size_t)width + (size_t)left) * 3;
        for (int x = 0; x < cut_w; x++, from += 3) {
//? gray
            *to++ = (uint8_t)((from[0] * 19595 + from[1] * 38470 + from[2] * 7471 + 32768) >> 16);
//.
//? rgb
            for (int c = 0; c < 3; c++) *to++ = from[c];
//.
//? bgr
            for (int c = 2; c >= 0; c--) *to++ = from[c];
//.
        }
    }
    if (tall) {
        scale_down(cut, cut_w, between);
        scale_across(between, inner_h, scaled);
    } else {
        scale_across(cut, cut_h, between);
        scale_down(between, inner_w, scaled);
    }
    size_t row = (size_t)inner_w * CHANNELS;
    memset(pixels, __PADDING__, sizeof pixels);
    for (int y = 0; y < inner_h; y++) memcpy(pixels + ((y0 + y) * WIDTH + x0) * CHANNELS, scaled + (size_t)y * row, row);
    return pixels;
}
//.

void predict_close(void) {
    if (ort != NULL) {
        for (int i = 0; i < OUTPUTS; i++)
            if (outputs[i] != NULL) ort->ReleaseValue(outputs[i]);
        if (input != NULL) ort->ReleaseValue(input);
        if (memory != NULL) ort->ReleaseMemoryInfo(memory);
        if (session != NULL) ort->ReleaseSession(session);
        if (env != NULL) ort->ReleaseEnv(env);
    }
    memset(outputs, 0, sizeof outputs);
    input = NULL, memory = NULL, session = NULL, env = NULL;
//? picture
    free_size();
//.
}

//? classes
static int read_answer(const float *answer, predict_answer answers[PREDICT_MOST]) {
    int count = 0;
    answer += __SCORES__;
//? logits
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < __CLASS_COUNT__; i++) most = fmax(most, answer[i]);
    for (int i = 0; i < __CLASS_COUNT__; i++) sum += exp(answer[i] - most);
//.
    for (int i = 0; i < __CLASS_COUNT__; i++) { /* each goes to its place among the best so far */
        int at = count < PREDICT_MOST ? count++ : PREDICT_MOST;
        for (; at > 0 && answers[at - 1].score < answer[i]; at--)
            if (at < PREDICT_MOST) answers[at] = answers[at - 1];
        if (at < PREDICT_MOST) answers[at] = (predict_answer){LABEL(i), i, answer[i]};
    }
//? logits
    for (int i = 0; i < count; i++) answers[i].score = (float)(exp(answers[i].score - most) / sum);
//.
    return count;
}
//.
//? boxes
typedef struct {
    double box[4];
    float score;
    int index;
} candidate;

static double side(double far, double near) { return far > near ? far - near : 0; }

static double area(const double *a) { return side(a[2], a[0]) * side(a[3], a[1]); }

/* Whether the intersection over the union exceeds the threshold. */
static int same_object(const candidate *one, const candidate *other) {
    const double *a = one->box, *b = other->box;
    double common = side(fmin(a[2], b[2]), fmax(a[0], b[0])) * side(fmin(a[3], b[3]), fmax(a[1], b[1]));
//? class_aware
    if (one->index != other->index) return 0;
//.
    return common > __IOU__ * (area(a) + area(b) - common);
}

static float inside(double x, int most) { return (float)(x < 0 ? 0 : x > most ? most : x); }

static int read_answer(const float *answer, predict_answer answers[PREDICT_MOST]) {
    static candidate found[__CANDIDATES__];
    const float *boxes = answer + __BOXES__, *scores = answer + __SCORES__;
    int count = __CANDIDATES__, left_over = 0, kept = 0;
    double scale_x = (double)cut_w / inner_w, scale_y = (double)cut_h / inner_h;
//? count
    if (!(answer[__COUNT__] >= count)) count = answer[__COUNT__] > 0 ? (int)answer[__COUNT__] : 0;
//.
    for (int i = 0; i < count; i++) {
        const float *row = scores + __SCORE_AT__ + i * __SCORE_STEP__;
//? stated
        double score = *row, index = rint((double)answer[__CLASSES__ + __CLASS_AT__ + i * __CLASS_STEP__]) - __SHIFT__;
//.
//? not stated
        double score = row[__FIRST__ * __SCORE_NEXT__], index = 0;
        for (int c = __FIRST__ + 1; c < __END__; c++)
            if (row[c * __SCORE_NEXT__] > score) score = row[c * __SCORE_NEXT__], index = c - __FIRST__;
//? softmax
        double most = -INFINITY, sum = 0;
        for (int c = 0; c < __COLUMNS__; c++) most = fmax(most, row[c * __SCORE_NEXT__]);
        for (int c = 0; c < __COLUMNS__; c++) sum += exp(row[c * __SCORE_NEXT__] - most);
        score = exp(score - most) / sum;
//.
//.
//? sigmoid
        score = 1 / (1 + exp(-score));
//.
//? objectness
        double sure = boxes[4 * __BOX_NEXT__ + i * __BOX_STEP__];
        score *= __SURE__;
//.
        if (!((float)score >= (float)__THRESHOLD__) || !(index >= 0 && index < 1 << 30)) continue;
        const float *at = boxes + i * __BOX_STEP__;
        double a = at[0], b = at[__BOX_NEXT__], c = at[2 * __BOX_NEXT__], d = at[3 * __BOX_NEXT__];
        candidate one = {{__CORNERS__}, (float)score, (int)index};
        for (int j = 0; j < 4; j++) one.box[j] *= j % 2 ? __SPAN_Y__ : __SPAN_X__;
        if (isfinite(one.box[0]) && isfinite(one.box[1]) && isfinite(one.box[2]) && isfinite(one.box[3]))
            found[left_over++] = one;
    }
    for (int turn = 0; turn < PREDICT_MOST && left_over > 0; turn++) { /* the best of those left, and not its doubles */
        int best = 0, next = 0;
        for (int i = 1; i < left_over; i++)
            if (found[i].score > found[best].score) best = i;
        candidate one = found[best];
        for (int i = 0; i < left_over; i++)
            if (i != best && !same_object(&one, &found[i])) found[next++] = found[i];
        left_over = next;
        predict_answer *made = &answers[kept];
        made->index = one.index, made->score = one.score;
        made->label = LABEL(one.index);
        made->left = inside(left + (one.box[0] - x0) * scale_x, width);
        made->top = inside(top + (one.box[1] - y0) * scale_y, height);
        made->right = inside(left + (one.box[2] - x0) * scale_x, width);
        made->bottom = inside(top + (one.box[3] - y0) * scale_y, height);
        if (made->right > made->left && made->bottom > made->top) kept++;
    }
    return kept;
}
//.
//? not named
static int read_answer(const float *answer, predict_answer answers[PREDICT_MOST]) {
    memcpy(answers, answer + __VECTOR__, PREDICT_MOST * sizeof *answers);
//? normalize
    double sum = 0;
    for (int i = 0; i < PREDICT_MOST; i++) sum += (double)answers[i] * answers[i];
    for (int i = 0; sum > 0 && i < PREDICT_MOST; i++) answers[i] = (float)(answers[i] / sqrt(sum));
//.
    return PREDICT_MOST;
}
//.

//? picture
int predict(const uint8_t *rgb, predict_answer answers[PREDICT_MOST]) {
    const predict_item *item = predict_pixels(rgb);
    const float *answer = item == NULL ? NULL : predict_run(item);
    return answer == NULL ? -1 : read_answer(answer, answers);
}
//.
//? not picture
int predict(const predict_item *item, predict_answer answers[PREDICT_MOST]) {
    const float *answer = predict_run(item);
    return answer == NULL ? -1 : read_answer(answer, answers);
}
//.
