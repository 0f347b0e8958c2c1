/* Predicts, fine-tunes, predicts and answers on the samples of samples.h, and puts out every result as the bits of its
 * floats, with the instructions that each call took. */
#include <stddef.h>
#include <string.h>

#include "board.h"
#include "fewjoule_model.h"
#include "samples.h"

static void put_hex(uint32_t value, uint32_t digits)
{
    char text[10] = " ";
    for (uint32_t i = 0U; i < digits; i++) {
        text[i + 1U] = "0123456789abcdef"[(value >> (4U * ((digits - 1U) - i))) & 15U];
    }
    text[digits + 1U] = '\0';
    put(text);
}

static void put_floats(const char *name, const float *values, uint32_t count)
{
    put(name);
    for (uint32_t i = 0U; i < count; i++) {
        uint32_t bits;
        (void)memcpy(&bits, &values[i], sizeof(bits));
        put_hex(bits, 8U);
    }
    put("\n");
}

static void put_count(const char *name, uint64_t from)
{
    put(name);
    put_hex((uint32_t)(instructions() - from), 8U);
    put("\n");
}

static void read_sample(void *context, uint32_t index, float *x, fewjoule_target *y)
{
    (void)context;
    (void)memcpy(x, &sample_x[index * FEWJOULE_INPUTS], FEWJOULE_INPUTS * sizeof(float));
    (void)memcpy(y, &sample_y[index * FEWJOULE_TARGETS], FEWJOULE_TARGETS * sizeof(fewjoule_target));
}

static void predict_all(const char *name)
{
    static float outputs[QUERIES * FEWJOULE_OUTPUTS];
    const uint64_t from = instructions();
    for (uint32_t q = 0U; q < QUERIES; q++) {
        fewjoule_predict(&query_x[q * FEWJOULE_INPUTS], &outputs[q * FEWJOULE_OUTPUTS]);
    }
    put_count("instructions_predict", from);
    put_floats(name, outputs, QUERIES * FEWJOULE_OUTPUTS);
}

static void put_number(const char *name, uint32_t bytes)
{
    put(name);
    put_hex(bytes, 8U);
    put("\n");
}

int main(void)
{
    const fewjoule_task task = {read_sample, NULL, SAMPLES, ALLOWED};
    fewjoule_status status;
    uint64_t from;
    put_number("flash_model", FEWJOULE_FLASH_MODEL);
    put_number("flash_answer", FEWJOULE_FLASH_ANSWER);
    put_number("ram_predict", FEWJOULE_RAM_PREDICT);
    put_number("ram_fine_tune", FEWJOULE_RAM_FINE_TUNE);
    put_number("ram_answer", FEWJOULE_RAM_ANSWER);
    predict_all("before");
    from = instructions();
    status = fewjoule_fine_tune(&task, STEPS, LEARNING_RATE);
    put_count("instructions_fine_tune", from);
    put_number("status", (uint32_t)status);
    put_floats("weights", fewjoule_weights(), FEWJOULE_WEIGHTS);
    predict_all("after");
#if FEWJOULE_QUESTIONS > 0
    {
        static uint8_t message[FEWJOULE_MESSAGE_BYTES];
        uint32_t length;
        from = instructions();
        length = fewjoule_answer(&task, message);
        put_count("instructions_answer", from);
        put("message");
        for (uint32_t i = 0U; i < length; i++) {
            put_hex(message[i], 2U);
        }
        put("\n");
    }
#endif
    return 0;
}
