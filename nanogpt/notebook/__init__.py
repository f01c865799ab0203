"""All that a notebook cell imports for show: sessions, tables, figures."""
