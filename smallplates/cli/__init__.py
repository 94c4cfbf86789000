"""The command `smallplates`: serves models with a web page; exports, checks and measures them."""
