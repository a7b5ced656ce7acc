// Empty on purpose: it replaces the theme's script of this name, half a megabyte (compressed) on every page, which draws
// the same icons as the theme's web font.
