/* The blocks of conv4; rows of pixels, channels last. */

/* The pixel beside (row, column) that a tap of the 3 x 3 window sees, or -1 outside of the image. */
static int32_t seen(const layer_type *layer, uint32_t row, uint32_t column, uint32_t tap)
{
    const int32_t r = ((int32_t)row + (int32_t)(tap / 3U)) - 1;
    const int32_t c = ((int32_t)column + (int32_t)(tap % 3U)) - 1;
    const int32_t width = (int32_t)layer->width;
    return ((r < 0) || (r >= (int32_t)layer->height) || (c < 0) || (c >= width)) ? -1 : ((r * width) + c);
}

static float scaled(const layer_type *layer, const float *gain, uint32_t pixel, uint32_t o)
{
    return (activations[layer->normal + (pixel * layer->outputs) + o] * gain[o]) + gain[layer->outputs + o];
}

/* The pixel of the largest value, the first of equals, in the pooling window at (row, column) of a block's output. */
static uint32_t strongest(const layer_type *layer, const float *gain, uint32_t row, uint32_t column, uint32_t o)
{
    const uint32_t corner = (row * layer->pool_height * layer->width) + (column * layer->pool_width);
    uint32_t best = corner;
    for (uint32_t i = 1U; i < (layer->pool_height * layer->pool_width); i++) {
        const uint32_t pixel = corner + ((i / layer->pool_width) * layer->width) + (i % layer->pool_width);
        if (scaled(layer, gain, pixel, o) > scaled(layer, gain, best, o)) {
            best = pixel;
        }
    }
    return best;
}

static void block_forward(uint32_t number)
{
    const layer_type *layer = &layers[number];
    const uint32_t outputs = layer->outputs, taps = layer->inputs * outputs;
    const uint32_t pixels = layer->height * layer->width;
    const float *w = &weights[layer->first], *bias = &w[9U * taps], *gain = &bias[outputs];
    const float *x = &activations[layer->input];
    const float count = (float)(pixels * outputs);
    float *normal = &activations[layer->normal];
    float *pooled = &activations[layers[number + 1U].input];
    float mean = 0.0F, variance = 0.0F;
    for (uint32_t p = 0U; p < pixels; p++) {
        float *sum = &normal[p * outputs];
        float total = 0.0F;
        (void)memcpy(sum, bias, outputs * sizeof(float));
        for (uint32_t tap = 0U; tap < 9U; tap++) {
            const int32_t from = seen(layer, p / layer->width, p % layer->width, tap);
            if (from >= 0) {
                add_product(sum, &x[(uint32_t)from * layer->inputs], &w[tap * taps], layer->inputs, outputs);
            }
        }
        for (uint32_t o = 0U; o < outputs; o++) {
            total += sum[o];
        }
        mean += total / count;
    }
    for (uint32_t p = 0U; p < pixels; p++) {
        float total = 0.0F;
        for (uint32_t o = 0U; o < outputs; o++) {
            const float apart = normal[(p * outputs) + o] - mean;
            normal[(p * outputs) + o] = apart;
            total += apart * apart;
        }
        variance += total / count;
    }
    inverse_deviation[number] = inverse_root(variance + 1.0e-5F);
    for (uint32_t i = 0U; i < (pixels * outputs); i++) {
        normal[i] *= inverse_deviation[number];
    }
    for (uint32_t row = 0U; row < (layer->height / layer->pool_height); row++) {
        for (uint32_t column = 0U; column < (layer->width / layer->pool_width); column++) {
            for (uint32_t o = 0U; o < outputs; o++) {
                const float value = scaled(layer, gain, strongest(layer, gain, row, column, o), o);
                *pooled = (value > 0.0F) ? value : 0.0F;
                pooled++;
            }
        }
    }
}

/* From the derivatives by the pooled outputs in `delta` to those by the inputs, also in `delta`; `spread` is for those
 * by the convolution. Where ReLU gave 0, `delta` is 0. */
static void block_backward(uint32_t number, float *delta, float *spread)
{
    const layer_type *layer = &layers[number];
    const uint32_t outputs = layer->outputs, taps = layer->inputs * outputs;
    const uint32_t pixels = layer->height * layer->width;
    const float *w = &weights[layer->first], *gain = &w[(9U * taps) + outputs];
    const float *x = &activations[layer->input], *normal = &activations[layer->normal];
    const float count = (float)(pixels * outputs);
    float *w_sum = &gradient[layer->first], *bias_sum = &w_sum[9U * taps], *gain_sum = &bias_sum[outputs];
    float *shift_sum = &gain_sum[outputs];
    const float *pooled = delta;
    float mean = 0.0F, slope = 0.0F;
    clear(spread, pixels * outputs);
    for (uint32_t row = 0U; row < (layer->height / layer->pool_height); row++) {
        for (uint32_t column = 0U; column < (layer->width / layer->pool_width); column++) {
            for (uint32_t o = 0U; o < outputs; o++) {
                const uint32_t at = (strongest(layer, gain, row, column, o) * outputs) + o;
                const float through = (*pooled) * gain[o];
                gain_sum[o] += (*pooled) * normal[at];
                shift_sum[o] += *pooled;
                mean += through / count;
                slope += (through * normal[at]) / count;
                spread[at] = through;
                pooled++;
            }
        }
    }
    for (uint32_t i = 0U; i < (pixels * outputs); i++) {
        spread[i] = inverse_deviation[number] * ((spread[i] - mean) - (normal[i] * slope));
    }
    if (number > 0U) {
        clear(delta, pixels * layer->inputs);
    }
    for (uint32_t p = 0U; p < pixels; p++) {
        const float *here = &spread[p * outputs];
        add_to(bias_sum, here, outputs);
        for (uint32_t tap = 0U; tap < 9U; tap++) {
            const int32_t from = seen(layer, p / layer->width, p % layer->width, tap);
            if (from >= 0) {
                const uint32_t at = (uint32_t)from * layer->inputs;
                add_outer(&w_sum[tap * taps], &x[at], here, layer->inputs, outputs);
                if (number > 0U) {
                    add_back(&delta[at], &x[at], &w[tap * taps], here, layer->inputs, outputs);
                }
            }
        }
    }
}
