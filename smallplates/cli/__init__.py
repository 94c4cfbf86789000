"""The command `servery`: serves models with a web page; exports, checks and measures them."""
