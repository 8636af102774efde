/* Runs what edgekit recorded, or one file: ./predict __FILE__ */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "predict.h"
//? labels
#include "labels.h"
//.

static predict_answer answers[PREDICT_MOST];
static predict_item item[PREDICT_ITEM];
static float wanted[__VALUES__];

static int stop(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

//? sums
static uint32_t adler(uint32_t sum, const void *data, size_t size) {
    uint32_t a = sum & 0xffff, b = sum >> 16;
    for (size_t i = 0; i < size; i++) a = (a + ((const uint8_t *)data)[i]) % 65521, b = (b + a) % 65521;
    return b << 16 | a;
}

//.
//? picture
/* The next number of a PPM's head; comments begin with #. */
static int number(FILE *file) {
    int c = fgetc(file), value = 0;
    while (c == '#' || (c >= 0 && c <= ' ')) {
        if (c == '#')
            while (c != '\n' && c != EOF) c = fgetc(file);
        c = fgetc(file);
    }
    if (c < '0' || c > '9') return -1;
    for (; c >= '0' && c <= '9' && value < 1000000; c = fgetc(file)) value = value * 10 + c - '0';
    return value;
}

/* The bytes of a binary PPM (P6), for which predict_size() was called; NULL if it is something else. */
static uint8_t *read_ppm(FILE *file) {
    if (fgetc(file) != 'P' || fgetc(file) != '6') return NULL;
    int width = number(file), height = number(file);
    if (number(file) != 255 || predict_size(width, height) != 0) return NULL;
    size_t size = (size_t)width * (size_t)height * 3;
    uint8_t *rgb = malloc(size);
    if (rgb != NULL && fread(rgb, 1, size, file) == size) return rgb;
    free(rgb);
    return NULL;
}

/* Pictures made by a rule, as edgekit made them. */
static int check_pictures(void) {
    static const uint32_t known[][3] = {{__PICTURE_1__}, {__PICTURE_2__}};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        int width = (int)known[n][0], height = (int)known[n][1];
        uint8_t *rgb = malloc((size_t)width * (size_t)height * 3), *at = rgb;
        if (rgb == NULL || predict_size(width, height) != 0) return free(rgb), stop("too little memory");
        for (int y = 0; y < height; y++)
            for (int x = 0; x < width; x++)
                for (int c = 0; c < 3; c++) *at++ = (uint8_t)(x * (3 + c) + y * (5 + 2 * c) + ((x * y) >> 4));
        uint32_t sum = adler(1, predict_pixels(rgb), PREDICT_ITEM);
        free(rgb);
        if (sum != known[n][2]) return stop("differs: the pixels of a picture");
    }
    return 0;
}

//.
static int check(void) {
    static const struct {
        const char *name;
        int size;
        double allowed;
    } outputs[] = {__CHECKED__};
//? labels
    uint32_t sum = 1;
    for (size_t i = 0; i < sizeof LABELS / sizeof *LABELS; i++) {
        if (i > 0) sum = adler(sum, "\n", 1);
        sum = adler(sum, LABELS[i], strlen(LABELS[i]));
    }
    if (sum != __LABELS_SUM__u) return stop("differs: labels.h is not the bundle's");
//.
//? picture
    if (check_pictures() != 0) return 1;
//.
    FILE *golden = fopen("golden.bin", "rb");
    if (golden == NULL) return stop("golden.bin cannot be read");
    for (int example = 0; example < __EXAMPLES__; example++) {
        if (fread(item, sizeof item, 1, golden) != 1 || fread(wanted, sizeof wanted, 1, golden) != 1)
            return fclose(golden), stop("golden.bin ends too early");
        const float *got = predict_run(item), *known = wanted;
        if (got == NULL) return fclose(golden), stop(predict_error());
        for (size_t n = 0; n < sizeof outputs / sizeof *outputs; n++) {
            double apart = 0, most = 0, dot = 0, one = 0, other = 0;
            for (int i = 0; i < outputs[n].size; i++, got++, known++) {
                double distance = fabs((double)*got - *known);
                apart = apart >= distance ? apart : distance; /* NaN stays */
                most = fmax(most, fabs(*known));
                dot += (double)*got * *known, one += (double)*got * *got, other += (double)*known * *known;
            }
            double allowed = outputs[n].allowed > 0 ? outputs[n].allowed : __FLOAT_STEPS__ * most, cosine = dot / sqrt(one * other);
            printf("example %d, %s: %.3g apart, cosine %.5f\n", example, outputs[n].name, apart, cosine);
            if (!(apart <= allowed * 1.001) && !(cosine >= __COSINE__)) return fclose(golden), stop(__DIFFERS__);
        }
    }
    fclose(golden);
    puts("ok");
    return 0;
}

static int answer_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return fprintf(stderr, "%s: cannot be read: %s\n", path, strerror(errno)), 2;
//? picture
    uint8_t *rgb = read_ppm(file);
    fclose(file);
    if (rgb == NULL) return stop("pass a binary PPM (P6), 8 bits a colour");
    int count = predict(rgb, answers);
    free(rgb);
//.
//? not picture
    size_t got = fread(item, sizeof item, 1, file);
    fclose(file);
    if (got != 1) return stop("pass a file of __ITEM_SIZE__ floats");
    int count = predict(item, answers);
//.
    if (count < 0) return stop(predict_error());
    for (int i = 0; i < count; i++) {
//? named
        if (*answers[i].label != 0)
            printf("%s ", answers[i].label);
        else
            printf("%d ", answers[i].index);
//.
//? classes
        printf("%.4f\n", answers[i].score);
//.
//? boxes
        printf("%.4f %.1f %.1f %.1f %.1f\n", answers[i].score, answers[i].left, answers[i].top, answers[i].right,
               answers[i].bottom);
//.
//? not named
        printf("%.6g\n", answers[i]);
//.
    }
    return 0;
}

int main(int count, char **arguments) {
    if (predict_open("model.onnx") != 0) return stop(predict_error());
    int wrong = count > 1 ? answer_file(arguments[1]) : check();
    predict_close();
    return wrong;
}
