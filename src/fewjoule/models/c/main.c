/* An example to start from: predict, fine-tune on samples of one's own, predict again. */
#include <stddef.h>
#include <stdio.h>

#include "fewjoule_model.h"

#define SAMPLES 8U

/* Made-up samples. Write here how your device gets its own: from a sensor's log, external flash, a file. */
static void read_sample(void *context, uint32_t index, float *x, fewjoule_target *y)
{
    (void)context;
    for (uint32_t i = 0U; i < FEWJOULE_INPUTS; i++) {
        x[i] = (float)((index + i) % 5U) / 5.0F;
    }
    for (uint32_t t = 0U; t < FEWJOULE_TARGETS; t++) {
        y[t] = (fewjoule_target)(index % FEWJOULE_OUTPUTS);
    }
}

static void show(const char *when)
{
    static float x[FEWJOULE_INPUTS];
    static float outputs[FEWJOULE_OUTPUTS];
    fewjoule_target y[FEWJOULE_TARGETS];
    read_sample(NULL, 0U, x, y);
    fewjoule_predict(x, outputs);
    (void)printf("%s:", when);
    for (uint32_t o = 0U; o < FEWJOULE_OUTPUTS; o++) {
        (void)printf(" %.6f", (double)outputs[o]);
    }
    (void)printf("\n");
}

int main(void)
{
    const fewjoule_task task = {read_sample, NULL, SAMPLES, NULL};
    fewjoule_status status;
    show("before");
    status = fewjoule_fine_tune(&task, 10U, 0.01F);
    show("after 10 steps");
#if FEWJOULE_QUESTIONS > 0
    {
        static uint8_t message[FEWJOULE_MESSAGE_BYTES];
        const uint32_t length = fewjoule_answer(&task, message);
        (void)printf("answers:");
        for (uint32_t i = 0U; i < length; i++) {
            (void)printf(" %02x", message[i]);
        }
        (void)printf("\n");
    }
#endif
    return (status == FEWJOULE_OK) ? 0 : 1;
}
