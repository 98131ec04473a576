"""PBP against EM and online EM on random loopy networks [PBP 6, Fig. 5]."""
