"""Reports as one HTML file, made of a command's own JSON alone; an unknown figure is a dash, never a zero."""
