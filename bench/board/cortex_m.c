/* A Cortex-M without an operating system: start, output by semihosting, and instructions counted by SysTick.
 * QEMU with -icount shift=0 takes 1 ns for an instruction, and the boards' SysTick runs at 25 MHz. */
#include "board.h"

#include <stddef.h>

#define INSTRUCTIONS_PER_TICK 40U
#define SYSTICK ((volatile uint32_t *)0xE000E010U) /* control, reload, value */
#define FPU_ACCESS (*(volatile uint32_t *)0xE000ED88U)
#define SYS_WRITE0 4
#define SYS_EXIT 0x18
#define ADP_STOPPED_APPLICATION_EXIT 0x20026
#define ADP_STOPPED_RUN_TIME_ERROR 0x20023

extern uint32_t data_from, data_start, data_end, bss_start, bss_end;
extern void stack_top(void); /* an address, as all vectors are */
int main(void);

static volatile uint32_t wraps;

static void ask_host(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void put(const char *text)
{
    ask_host(SYS_WRITE0, text);
}

uint64_t instructions(void)
{
    uint32_t before, value;
    do {
        before = wraps;
        value = SYSTICK[2];
    } while (before != wraps);
    return (((uint64_t)before << 24) + (0xFFFFFFU - value)) * INSTRUCTIONS_PER_TICK;
}

static void on_tick(void)
{
    wraps++;
}

static void on_fault(void)
{
    put("fault\n");
    ask_host(SYS_EXIT, (const void *)ADP_STOPPED_RUN_TIME_ERROR);
}

static void on_reset(void)
{
    uint32_t *to = &data_start;
    for (const uint32_t *from = &data_from; to < &data_end; to++) {
        *to = *from;
        from++;
    }
    for (to = &bss_start; to < &bss_end; to++) {
        *to = 0U;
    }
    FPU_ACCESS |= 0xFU << 20;
    __asm__ volatile("dsb\n isb");
    SYSTICK[1] = 0xFFFFFFU;
    SYSTICK[2] = 0U;
    SYSTICK[0] = 7U; /* count, interrupt at 0, the processor's clock */
    while (SYSTICK[2] == 0U) {
    }
    wraps = 0U;
    (void)main();
    ask_host(SYS_EXIT, (const void *)ADP_STOPPED_APPLICATION_EXIT);
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    stack_top, on_reset, on_fault, on_fault, on_fault, on_fault, on_fault, NULL,
    NULL, NULL, NULL, on_fault, on_fault, NULL, on_fault, on_tick,
};
