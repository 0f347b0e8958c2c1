/* The least program around the model, for what the linker makes of it. A real device has its samples elsewhere. */
#include <stddef.h>

#include "fewjoule_model.h"

volatile float sensor;
volatile uint32_t truth;

#if USES_FINE_TUNE
static void read_sample(void *context, uint32_t index, float *x, fewjoule_target *y)
{
    (void)context;
    (void)index;
    for (uint32_t i = 0U; i < FEWJOULE_INPUTS; i++) {
        x[i] = sensor;
    }
    for (uint32_t t = 0U; t < FEWJOULE_TARGETS; t++) {
        y[t] = (fewjoule_target)truth;
    }
}
#endif

int main(void)
{
    float x[FEWJOULE_INPUTS], outputs[FEWJOULE_OUTPUTS];
#if USES_FINE_TUNE
    const fewjoule_task task = {read_sample, NULL, 40U, NULL};
    truth = (uint32_t)fewjoule_fine_tune(&task, 10U, sensor);
#endif
#if USES_ANSWER
    uint8_t message[FEWJOULE_MESSAGE_BYTES];
    truth = fewjoule_answer(&task, message);
    sensor = (float)message[0];
#endif
    for (uint32_t i = 0U; i < FEWJOULE_INPUTS; i++) {
        x[i] = sensor;
    }
    fewjoule_predict(x, outputs);
    sensor = outputs[0];
    return 0;
}
