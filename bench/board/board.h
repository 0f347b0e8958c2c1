/* What measure.c needs of the machine it runs on: host.c is a PC, cortex_m.c a microcontroller under QEMU. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void put(const char *text);
uint64_t instructions(void); /* since the start; a host does not count and gives 0 */

#endif
