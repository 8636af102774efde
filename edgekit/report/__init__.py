"""Reports as one HTML file, made of a command's own JSON; unknown figures are dashes."""
