"""The protocol that backends implement, and code that they share."""
