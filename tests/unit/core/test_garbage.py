"""The collector's rounds leave out what is loaded for good."""

import gc

from mappa_core.core.garbage import YOUNG_OBJECTS, freeze_garbage_collector


def test_what_is_loaded_is_walked_no_more() -> None:
    before = gc.get_threshold()
    try:
        freeze_garbage_collector()
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
