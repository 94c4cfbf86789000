"""The command `servery`: serves models, with a page, and has the tools around it."""
