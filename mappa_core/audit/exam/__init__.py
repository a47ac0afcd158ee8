"""An exam that a coach sits before it teaches: cases whose order is known."""
