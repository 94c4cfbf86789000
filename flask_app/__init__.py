"""Web page that takes photos from a browser, asks the API, and answers in a sentence."""
