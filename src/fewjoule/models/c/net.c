#include "fewjoule_model.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    uint32_t is_block;      /* 3 x 3 convolution, normalisation, ReLU, max-pooling; else a dense layer */
    uint32_t inputs;        /* numbers, or channels of a block */
    uint32_t outputs;
    uint32_t height, width; /* of a block's input */
    uint32_t pool_height, pool_width;
    uint32_t first;  /* position of its weight among the weights; its bias (a block's: bias, gain, shift) follows */
    uint32_t input;  /* position of its input among the activations; its output is the next layer's input */
    uint32_t normal; /* position of a block's normalised convolution there */
} layer_type;

#include "fewjoule_tables.h"

#define LAST (FEWJOULE_LAYERS - 1U)
#define OUTPUT_AT (FEWJOULE_ACTIVATIONS - FEWJOULE_OUTPUTS)

static float activations[FEWJOULE_ACTIVATIONS]; /* of one sample */
static float trained[FEWJOULE_WEIGHTS];
static float gradient[FEWJOULE_WEIGHTS];
static float deltas[FEWJOULE_DELTAS]; /* derivatives of the loss, of two layers in turn */
static float other_deltas[FEWJOULE_OTHER_DELTAS];
static fewjoule_target target[FEWJOULE_TARGETS];
#if FEWJOULE_INT8
static const float *weights = NULL;
#else
static const float *weights = meta;
#endif
#if FEWJOULE_BLOCKS > 0
static float inverse_deviation[FEWJOULE_BLOCKS];
#endif

void fewjoule_reset(void)
{
#if FEWJOULE_INT8
    uint32_t code = 0U, scale = 0U, number = 0U;
    for (uint32_t l = 0U; l < FEWJOULE_LAYERS; l++) {
        const layer_type *layer = &layers[l];
        const uint32_t rows = ((layer->is_block != 0U) ? 9U : 1U) * layer->inputs;
        const uint32_t others = ((layer->is_block != 0U) ? 3U : 1U) * layer->outputs;
        float *to = &trained[layer->first];
        for (uint32_t i = 0U; i < rows; i++) {
            for (uint32_t o = 0U; o < layer->outputs; o++) {
                *to = (float)codes[code] * scales[scale + o];
                to++;
                code++;
            }
        }
        scale += layer->outputs;
        (void)memcpy(to, &plain[number], others * sizeof(float));
        number += others;
    }
    weights = trained;
#else
    weights = meta;
#endif
}

const float *fewjoule_weights(void)
{
    if (weights == NULL) {
        fewjoule_reset();
    }
    return weights;
}

void fewjoule_set_weights(const float *kept)
{
    (void)memmove(trained, kept, sizeof(trained));
    weights = trained;
}

/* sum[o] += sum over i of x[i] w[i][o]; inputs that are 0, such as dark pixels, cost next to nothing */
static void add_product(float *restrict sum, const float *restrict x, const float *restrict w, uint32_t inputs,
                        uint32_t outputs)
{
    for (uint32_t i = 0U; i < inputs; i++) {
        const float value = x[i];
        if (value != 0.0F) {
            for (uint32_t o = 0U; o < outputs; o++) {
                sum[o] += value * w[o];
            }
        }
        w = &w[outputs];
    }
}

/* sum[i][o] += x[i] delta[o]: the gradient of a weight */
static void add_outer(float *restrict sum, const float *restrict x, const float *restrict delta, uint32_t inputs,
                      uint32_t outputs)
{
    for (uint32_t i = 0U; i < inputs; i++) {
        const float value = x[i];
        if (value != 0.0F) {
            for (uint32_t o = 0U; o < outputs; o++) {
                sum[o] += value * delta[o];
            }
        }
        sum = &sum[outputs];
    }
}

/* sum[i] += sum over o of w[i][o] delta[o], where x[i], which a ReLU gave, lets it through */
static void add_back(float *restrict sum, const float *restrict x, const float *restrict w, const float *restrict delta,
                     uint32_t inputs, uint32_t outputs)
{
    for (uint32_t i = 0U; i < inputs; i++) {
        if (x[i] > 0.0F) {
            float total = 0.0F;
            for (uint32_t o = 0U; o < outputs; o++) {
                total += w[o] * delta[o];
            }
            sum[i] += total;
        }
        w = &w[outputs];
    }
}

static void add_to(float *restrict sum, const float *restrict values, uint32_t count)
{
    for (uint32_t i = 0U; i < count; i++) {
        sum[i] += values[i];
    }
}

static void clear(float *values, uint32_t count)
{
    for (uint32_t i = 0U; i < count; i++) {
        values[i] = 0.0F;
    }
}

#if (FEWJOULE_CLASSIFIES != 0) || (FEWJOULE_NOISE != 0)
/* e to the power of x, for x <= 0: within one unit in the last place */
static float exponential(float x)
{
    const float halves = (x * 1.44269504F) - 0.5F;
    int32_t power;
    uint32_t bits;
    float n, r, scale, series;
    if (!(x >= -87.0F)) {
        return (x < -87.0F) ? 0.0F : x; /* no number stays none */
    }
    power = (int32_t)halves; /* towards 0, so to the nearest */
    n = (float)power;
    r = (x - (n * 0.693359375F)) + (n * 2.12194440e-4F); /* x - n ln 2, in two parts */
    bits = (uint32_t)(power + 127) << 23;
    series = 1.9875691500e-4F;
    series = (series * r) + 1.3981999507e-3F;
    series = (series * r) + 8.3334519073e-3F;
    series = (series * r) + 4.1665795894e-2F;
    series = (series * r) + 1.6666665459e-1F;
    series = (series * r) + 5.0000001201e-1F;
    (void)memcpy(&scale, &bits, sizeof(scale));
    return scale * ((((series * r) * r) + r) + 1.0F);
}
#endif

#if (FEWJOULE_BLOCKS > 0) || (FEWJOULE_NOISE != 0) || (FEWJOULE_STROKES != 0)
/* 1 / sqrt(v) for v > 0: a first guess by the exponent, then Newton's steps, each of which doubles the right digits */
static float inverse_root(float v)
{
    uint32_t bits;
    float root;
    (void)memcpy(&bits, &v, sizeof(bits));
    bits = 0x5F3759DFU - (bits >> 1);
    (void)memcpy(&root, &bits, sizeof(root));
    for (uint32_t i = 0U; i < 4U; i++) {
        root = root * (1.5F - (((0.5F * v) * root) * root));
    }
    return root;
}
#endif

#if FEWJOULE_BLOCKS > 0
#include "blocks.c"
#endif

static void dense_forward(const layer_type *layer, uint32_t is_last)
{
    const uint32_t bias = layer->first + (layer->inputs * layer->outputs);
    const float *x = &activations[layer->input];
    float *output = &activations[layer->input + layer->inputs];
    (void)memcpy(output, &weights[bias], layer->outputs * sizeof(float));
    add_product(output, x, &weights[layer->first], layer->inputs, layer->outputs);
    if (is_last == 0U) {
        for (uint32_t o = 0U; o < layer->outputs; o++) {
            if (output[o] < 0.0F) {
                output[o] = 0.0F;
            }
        }
    }
}

static void forward(void)
{
    for (uint32_t l = 0U; l < FEWJOULE_LAYERS; l++) {
#if FEWJOULE_BLOCKS > 0
        if (layers[l].is_block != 0U) {
            block_forward(l);
            continue;
        }
#endif
        dense_forward(&layers[l], (l == LAST) ? 1U : 0U);
    }
}

/* Adds one sample's gradient, from the derivatives by the outputs in `deltas`. */
static void backward(void)
{
    float *delta = deltas;
    float *back = other_deltas;
    for (uint32_t done = 0U; done < FEWJOULE_LAYERS; done++) {
        const uint32_t l = LAST - done;
        const layer_type *layer = &layers[l];
        const float *x = &activations[layer->input];
        float *sum = &gradient[layer->first];
        float *free_now = delta;
#if FEWJOULE_BLOCKS > 0
        if (layer->is_block != 0U) {
            block_backward(l, delta, back);
            continue;
        }
#endif
        add_outer(sum, x, delta, layer->inputs, layer->outputs);
        add_to(&sum[layer->inputs * layer->outputs], delta, layer->outputs);
        if (l > 0U) {
            clear(back, layer->inputs);
            add_back(back, x, &weights[layer->first], delta, layer->inputs, layer->outputs);
        }
        delta = back;
        back = free_now;
    }
}

/* Inputs as training saw them. */
static void prepare(float *x)
{
#if FEWJOULE_DIVIDED
    for (uint32_t i = 0U; i < FEWJOULE_INPUTS; i++) {
        x[i] = x[i] / FEWJOULE_DIVIDED_BY;
    }
#endif
#if FEWJOULE_STANDARDISED > 0
    for (uint32_t i = 0U; i < FEWJOULE_INPUTS; i++) {
        x[i] = (x[i] - input_mean[i]) / input_scale[i];
    }
#endif
    (void)x;
}

void fewjoule_predict(const float *x, float *outputs)
{
    (void)fewjoule_weights();
    (void)memcpy(activations, x, FEWJOULE_INPUTS * sizeof(float));
    prepare(activations);
    forward();
    (void)memcpy(outputs, &activations[OUTPUT_AT], FEWJOULE_OUTPUTS * sizeof(float));
}

#if FEWJOULE_CLASSIFIES
/* Cross entropy: probabilities less 1 at the target, over the classes that are allowed. */
static fewjoule_status output_deltas(const fewjoule_task *task, float share)
{
    const float *logits = &activations[OUTPUT_AT];
    float top = -3.0e38F;
    float total = 0.0F;
    if (target[0] >= FEWJOULE_OUTPUTS) {
        return FEWJOULE_BAD_TASK;
    }
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        if (((task->allowed == NULL) || (task->allowed[o] != 0U)) && (logits[o] > top)) {
            top = logits[o];
        }
    }
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        deltas[o] = ((task->allowed == NULL) || (task->allowed[o] != 0U)) ? exponential(logits[o] - top) : 0.0F;
        total += deltas[o];
    }
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        deltas[o] = (deltas[o] / total) * share;
    }
    if ((task->allowed == NULL) || (task->allowed[target[0]] != 0U)) {
        deltas[target[0]] -= share;
    }
    return FEWJOULE_OK;
}
#else
/* Squared error, a mean over the outputs. */
static fewjoule_status output_deltas(const fewjoule_task *task, float share)
{
    (void)task;
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        deltas[o] = 2.0F * (activations[OUTPUT_AT + o] - target[o]) * (share / (float)FEWJOULE_OUTPUTS);
    }
    return FEWJOULE_OK;
}
#endif

fewjoule_status fewjoule_fine_tune(const fewjoule_task *task, uint32_t steps, float learning_rate)
{
    if (task->samples == 0U) {
        return FEWJOULE_BAD_TASK;
    }
    if (fewjoule_weights() != trained) {
        fewjoule_set_weights(weights);
    }
    for (uint32_t step = 0U; step < steps; step++) {
        clear(gradient, FEWJOULE_WEIGHTS);
        for (uint32_t s = 0U; s < task->samples; s++) {
            task->read(task->context, s, activations, target);
            prepare(activations);
            forward();
            if (output_deltas(task, 1.0F / (float)task->samples) != FEWJOULE_OK) {
                return FEWJOULE_BAD_TASK;
            }
            backward();
        }
        for (uint32_t i = 0U; i < FEWJOULE_WEIGHTS; i++) {
            trained[i] -= learning_rate * gradient[i];
        }
    }
    for (uint32_t i = 0U; i < FEWJOULE_WEIGHTS; i++) {
        const float difference = trained[i] - trained[i]; /* not 0 where it is infinite or no number */
        if (!(difference >= 0.0F)) {
            return FEWJOULE_DIVERGED;
        }
    }
    return FEWJOULE_OK;
}
