/* The message of the method `answers`: docs/codecs.md has its bytes. */

#define ANSWERS (FEWJOULE_QUESTIONS * FEWJOULE_TOLD)
#define LEVELS ((int32_t)((1U << FEWJOULE_BITS) - 1U))
#define FARTHEST 8191

static float answers[ANSWERS];
#if FEWJOULE_TOLD < FEWJOULE_OUTPUTS
static uint32_t class_samples[FEWJOULE_OUTPUTS];
#endif

static uint32_t bits_of(float value)
{
    uint32_t bits;
    (void)memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    (void)memcpy(&value, &bits, sizeof(value));
    return value;
}

static float magnitude(float value)
{
    return (value < 0.0F) ? -value : value;
}

/* To 8 significant bits, upwards. */
static float coarsened(float value)
{
    return float_of((bits_of(value) + 0xFFFFU) & 0xFFFF0000U);
}

static int32_t floor_of(float value)
{
    const int32_t whole = (int32_t)value;
    return ((float)whole > value) ? (whole - 1) : whole;
}

/* To the nearest, halves to the even one. */
static int32_t round_of(float value)
{
    const int32_t low = floor_of(value);
    const float rest = value - (float)low;
    const uint32_t is_odd = (uint32_t)low & 1U;
    return ((rest > 0.5F) || ((rest >= 0.5F) && (is_odd != 0U))) ? (low + 1) : low;
}

#if FEWJOULE_CLASSIFIES
/* The magnitude that exactly `above` others come before, from the largest on. */
static float ranked(uint32_t above)
{
    float limit = 3.4e38F;
    uint32_t before = 0U;
    while (before <= above) {
        float next = -1.0F;
        uint32_t equal = 0U;
        for (uint32_t i = 0U; i < ANSWERS; i++) {
            const float value = magnitude(answers[i]);
            if ((value < limit) && (value >= next)) {
                equal = (value > next) ? 1U : (equal + 1U);
                next = value;
            }
        }
        if (equal == 0U) {
            break; /* all are no numbers: there is nothing to rank */
        }
        limit = next;
        before += equal;
    }
    return limit;
}

/* Logits around 0 for each question, held within the 98th percentile of their magnitudes. */
static void clip(void)
{
    const float position = 0.98F * (float)(ANSWERS - 1U);
    const uint32_t low = (uint32_t)position;
    const uint32_t high = ((float)low < position) ? (low + 1U) : low;
    const float upper = position - (float)low;
    float most;
    for (uint32_t q = 0U; q < FEWJOULE_QUESTIONS; q++) {
        float *row = &answers[q * FEWJOULE_TOLD];
        float mean = 0.0F;
        for (uint32_t c = 0U; c < FEWJOULE_TOLD; c++) {
            mean += row[c];
        }
        mean /= (float)FEWJOULE_TOLD;
        for (uint32_t c = 0U; c < FEWJOULE_TOLD; c++) {
            row[c] -= mean;
        }
    }
    most = (ranked((ANSWERS - 1U) - low) * (1.0F - upper)) + (ranked((ANSWERS - 1U) - high) * upper);
    for (uint32_t i = 0U; i < ANSWERS; i++) {
        if (answers[i] > most) {
            answers[i] = most;
        } else if (answers[i] < -most) {
            answers[i] = -most;
        } else {
            /* it is within */
        }
    }
}
#endif

#if FEWJOULE_TOLD < FEWJOULE_OUTPUTS
/* Sets `class_samples` to 0 for the classes that the device has most samples of, the lower ones of equals. */
static void find_own_classes(const fewjoule_task *task)
{
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        class_samples[o] = 1U; /* so that a class without samples is not yet chosen */
    }
    for (uint32_t s = 0U; (task != NULL) && (s < task->samples); s++) {
        task->read(task->context, s, activations, target);
        if (target[0] < FEWJOULE_OUTPUTS) {
            class_samples[target[0]]++;
        }
    }
    for (uint32_t chosen = 0U; chosen < FEWJOULE_TOLD; chosen++) {
        uint32_t best = 0U;
        for (uint32_t o = 1U; o < FEWJOULE_OUTPUTS; o++) {
            best = (class_samples[o] > class_samples[best]) ? o : best;
        }
        class_samples[best] = 0U;
    }
}
#endif

#if (FEWJOULE_NOISE != 0) || (FEWJOULE_STROKES != 0)
#define PIXELS (FEWJOULE_IMAGE_HEIGHT * FEWJOULE_IMAGE_WIDTH)

/* One channel of a pixel, from its smooth noise in standard deviations. */
static float shade(float noise, uint32_t pixel)
{
#if FEWJOULE_NOISE
    const float score = 3.0F * (noise - 0.8F);
    const float part = exponential((score < 0.0F) ? score : -score);
    (void)pixel;
    return ((score < 0.0F) ? part : 1.0F) / (1.0F + part);
#else
    const float line = 1.5F * (1.0F - (magnitude(noise) / 0.5F));
    return ((line < 0.0F) ? 0.0F : ((line > 1.0F) ? 1.0F : line)) * inside[pixel];
#endif
}

/* A random image: coarse noise, enlarged by cubic interpolation first along its columns, then along its rows. */
static void draw(uint32_t question, float *image)
{
    const uint32_t numbers = FEWJOULE_COARSE_HEIGHT * FEWJOULE_COARSE_WIDTH * FEWJOULE_IMAGE_CHANNELS;
    const float *noise = &coarse_noise[question * numbers];
    for (uint32_t c = 0U; c < FEWJOULE_IMAGE_CHANNELS; c++) {
        float line[FEWJOULE_COARSE_WIDTH]; /* a row of the noise, interpolated */
        float mean = 0.0F, variance = 0.0F, inverse;
        for (uint32_t p = 0U; p < PIXELS; p++) {
            const float *by_row = &row_shares[(p / FEWJOULE_IMAGE_WIDTH) * FEWJOULE_COARSE_HEIGHT];
            const float *by_column = &column_shares[(p % FEWJOULE_IMAGE_WIDTH) * FEWJOULE_COARSE_WIDTH];
            float total = 0.0F;
            for (uint32_t j = 0U; ((p % FEWJOULE_IMAGE_WIDTH) == 0U) && (j < FEWJOULE_COARSE_WIDTH); j++) {
                line[j] = 0.0F;
                for (uint32_t i = 0U; i < FEWJOULE_COARSE_HEIGHT; i++) {
                    const uint32_t at = (((i * FEWJOULE_COARSE_WIDTH) + j) * FEWJOULE_IMAGE_CHANNELS) + c;
                    line[j] += by_row[i] * noise[at];
                }
            }
            for (uint32_t j = 0U; j < FEWJOULE_COARSE_WIDTH; j++) {
                total += by_column[j] * line[j];
            }
            image[(p * FEWJOULE_IMAGE_CHANNELS) + c] = total;
            mean += total;
        }
        mean /= (float)PIXELS;
        for (uint32_t p = 0U; p < PIXELS; p++) {
            const float apart = image[(p * FEWJOULE_IMAGE_CHANNELS) + c] - mean;
            variance += apart * apart;
        }
        variance /= (float)PIXELS;
        inverse = inverse_root((variance > 1.0e-12F) ? variance : 1.0e-12F);
        for (uint32_t p = 0U; p < PIXELS; p++) {
            float *value = &image[(p * FEWJOULE_IMAGE_CHANNELS) + c];
            *value = shade(*value * inverse, p);
        }
    }
}
#endif

static void ask(const fewjoule_task *task)
{
    uint32_t at = 0U;
#if FEWJOULE_TOLD < FEWJOULE_OUTPUTS
    find_own_classes(task);
#else
    (void)task;
#endif
    for (uint32_t q = 0U; q < FEWJOULE_QUESTIONS; q++) {
#if (FEWJOULE_NOISE != 0) || (FEWJOULE_STROKES != 0)
        draw(q, activations);
#else
        (void)memcpy(activations, &questions[q * FEWJOULE_INPUTS], FEWJOULE_INPUTS * sizeof(float));
#endif
        forward();
        for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
#if FEWJOULE_TOLD < FEWJOULE_OUTPUTS
            if (class_samples[o] != 0U) {
                continue;
            }
#endif
            answers[at] = activations[OUTPUT_AT + o];
            at++;
        }
    }
#if FEWJOULE_CLASSIFIES
    clip();
#endif
}

/* Seven bits a byte, the lowest first; gives how many bytes. */
static uint32_t put_varint(uint8_t *to, uint32_t value)
{
    uint32_t count = 0U;
    while (value >= 128U) {
        to[count] = (uint8_t)((value & 127U) | 128U);
        value >>= 7;
        count++;
    }
    to[count] = (uint8_t)value;
    return count + 1U;
}

static uint32_t checksum(const uint8_t *data, uint32_t count)
{
    uint32_t sum = 0xFFFFFFFFU;
    for (uint32_t i = 0U; i < count; i++) {
        sum ^= data[i];
        for (uint32_t bit = 0U; bit < 8U; bit++) {
            sum = ((sum & 1U) != 0U) ? ((sum >> 1) ^ 0xEDB88320U) : (sum >> 1);
        }
    }
    return ~sum;
}

uint32_t fewjoule_answer(const fewjoule_task *task, uint8_t *message)
{
    float top = 0.0F, low, high, spacing, unit, scale, inverse, smallest;
    int32_t offset = 0;
    uint32_t length, filled = 0U, waiting = 0U;
    (void)fewjoule_weights();
    ask(task);
    for (uint32_t i = 0U; i < ANSWERS; i++) {
        if (!(magnitude(answers[i]) <= 8.507059e37F)) { /* 2 to the power of 126: diverged */
            return 0U;
        }
        top = (magnitude(answers[i]) > top) ? magnitude(answers[i]) : top;
    }
    smallest = top * 8.673617379884035e-19F;                                            /* 2 to the power of -60 */
    smallest = (smallest > 7.888609052210118e-31F) ? smallest : 7.888609052210118e-31F; /* and of -100 */
    low = 3.0e38F;
    high = -3.0e38F;
    for (uint32_t i = 0U; i < ANSWERS; i++) {
        answers[i] = (magnitude(answers[i]) < smallest) ? 0.0F : answers[i];
        low = (answers[i] < low) ? answers[i] : low;
        high = (answers[i] > high) ? answers[i] : high;
    }
    top = (top < 7.888609052210118e-31F) ? 0.0F : top;
    spacing = (high - low) / (float)LEVELS;
    if (spacing < (top / (float)(FARTHEST - 256))) {
        spacing = top / (float)(FARTHEST - 256);
    }
    spacing = coarsened(spacing); /* a division to the nearest cannot have rounded down to 8 significant bits */
    unit = (spacing > 0.0F) ? spacing : 1.0F;
    scale = float_of(0x7F800000U - (bits_of(unit) & 0x7F800000U)); /* a power of two: unit * scale is from 2 to 4 */
    inverse = 1.0F / (unit * scale);
    if (spacing > 0.0F) {
        offset = floor_of((((low * 0.5F) + (high * 0.5F)) * scale) * inverse) - (LEVELS / 2);
    }
    message[0] = 0x15U; /* format 1, kind 5 */
    length = 1U + put_varint(&message[1], ANSWERS);
    message[length] = FEWJOULE_BITS;
    message[length + 1U] = (uint8_t)((bits_of(spacing) >> 16) & 255U);
    message[length + 2U] = (uint8_t)(bits_of(spacing) >> 24);
    length += 3U;
    length += put_varint(&message[length], (offset < 0) ? ((2U * (uint32_t)(-offset)) - 1U) : (2U * (uint32_t)offset));
    for (uint32_t i = 0U; i < ANSWERS; i++) {
        int32_t code = round_of((answers[i] * scale) * inverse) - offset;
        code = (code < 0) ? 0 : ((code > LEVELS) ? LEVELS : code);
        waiting |= (uint32_t)code << filled;
        filled += FEWJOULE_BITS;
        while (filled >= 8U) {
            message[length] = (uint8_t)(waiting & 255U);
            length++;
            waiting >>= 8;
            filled -= 8U;
        }
    }
    if (filled > 0U) {
        message[length] = (uint8_t)waiting;
        length++;
    }
    waiting = checksum(message, length);
    for (uint32_t i = 0U; i < 4U; i++) {
        message[length] = (uint8_t)((waiting >> (8U * i)) & 255U);
        length++;
    }
    return length;
}
