#include "board.h"

#include <stdio.h>

void put(const char *text)
{
    (void)fputs(text, stdout);
}

uint64_t instructions(void)
{
    return 0U;
}
