/* The placement of a layout that is given as text. Include cmocka.h before. */
#ifndef RS_TESTS_PLACE_H
#define RS_TESTS_PLACE_H

#include "reshard/layout.h"

static inline rs_placement *place(const rs_space *space, const char *text)
{
    rs_layout layout;
    rs_placement *placement = NULL;
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_OK);
    return placement;
}

#endif
