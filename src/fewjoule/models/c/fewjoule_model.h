/* A model of fewjoule on a microcontroller: prediction, fine-tuning, and the coded answers that an agent sends.
 *
 * C99 with float as IEEE 754 single; no library but memcpy, no malloc, no recursion. There is one model and its
 * memory is static, so call from one thread only. */
#ifndef FEWJOULE_MODEL_H
#define FEWJOULE_MODEL_H

#include <stdint.h>

#include "fewjoule_sizes.h"

/* Memory in bytes, without code and stack. It counts what a program calls: compile with -ffunction-sections
 * -fdata-sections and link with -Wl,--gc-sections, and the rest is left out. */
#if FEWJOULE_INT8
#define FEWJOULE_FLASH_WEIGHTS (FEWJOULE_CODES + (4U * FEWJOULE_SCALES) + (4U * FEWJOULE_PLAIN))
#define FEWJOULE_RAM_WEIGHTS (4U * FEWJOULE_WEIGHTS)
#else
#define FEWJOULE_FLASH_WEIGHTS (4U * FEWJOULE_WEIGHTS)
#define FEWJOULE_RAM_WEIGHTS 0U
#endif
#define FEWJOULE_FLASH_MODEL (FEWJOULE_FLASH_WEIGHTS + (40U * FEWJOULE_LAYERS) + (8U * FEWJOULE_STANDARDISED))
#define FEWJOULE_FLASH_ANSWER (4U * FEWJOULE_ASKED_NUMBERS)
#define FEWJOULE_RAM_SAMPLE ((4U * FEWJOULE_ACTIVATIONS) + (4U * FEWJOULE_BLOCKS) + 4U)
#define FEWJOULE_RAM_PREDICT (FEWJOULE_RAM_WEIGHTS + FEWJOULE_RAM_SAMPLE) /* a program that only predicts */
#define FEWJOULE_RAM_FINE_TUNE                                                                                         \
    ((8U * FEWJOULE_WEIGHTS) + FEWJOULE_RAM_SAMPLE + (4U * (FEWJOULE_DELTAS + FEWJOULE_OTHER_DELTAS)) +                \
     (4U * FEWJOULE_TARGETS)) /* and one that fine-tunes too */
#define FEWJOULE_RAM_ANSWER ((4U * FEWJOULE_QUESTIONS * FEWJOULE_TOLD) + (4U * FEWJOULE_COUNTED)) /* beside that */

#if FEWJOULE_CLASSIFIES
typedef uint32_t fewjoule_target; /* the number of a class, from 0 */
#else
typedef float fewjoule_target;
#endif

/* Where the device's own samples come from: `read` writes sample `index` (from 0) to x [FEWJOULE_INPUTS] and y
 * [FEWJOULE_TARGETS], out of memory, external flash or a file; so they need not be in RAM all at once. */
typedef struct {
    void (*read)(void *context, uint32_t index, float *x, fewjoule_target *y);
    void *context;
    uint32_t samples;
    const uint8_t *allowed; /* classifiers: for each class, whether the task has it; NULL where all may be */
} fewjoule_task;

typedef enum {
    FEWJOULE_OK = 0,
    FEWJOULE_BAD_TASK, /* no samples, or a class that the model does not have; the step was not taken */
    FEWJOULE_DIVERGED  /* a weight overflowed: fewjoule_reset(), then take a smaller learning rate */
} fewjoule_status;

/* Outputs [FEWJOULE_OUTPUTS] for inputs [FEWJOULE_INPUTS] as they are in the files that the model was trained on:
 * values, or one score (logit) for each class. */
void fewjoule_predict(const float *x, float *outputs);

/* Full-batch gradient descent on the device's own samples, as `fewjoule adapt` does. It goes on from where an earlier
 * call ended. */
fewjoule_status fewjoule_fine_tune(const fewjoule_task *task, uint32_t steps, float learning_rate);

/* Forget all fine-tuning. */
void fewjoule_reset(void);

/* The weights in use [FEWJOULE_WEIGHTS], to be kept over a power cycle, and how kept ones are put back. */
const float *fewjoule_weights(void);
void fewjoule_set_weights(const float *kept);

#if FEWJOULE_QUESTIONS > 0
/* The message that an agent of the method `answers` sends, from the weights in use. Writes at most
 * FEWJOULE_MESSAGE_BYTES and gives their number, or 0 where the answers are not finite. `task` may be NULL unless the
 * agent tells only some of its classes: those that it has most samples of. */
uint32_t fewjoule_answer(const fewjoule_task *task, uint8_t *message);
#endif

#endif
