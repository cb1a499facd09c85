"""`/dashboard`: pages rendered on the server, behind a login with an API key; everything works without scripts.

A new page is a `Page` or a `FormPage` in the `PAGES` of its module, which `routes.py` lists. What it does, it does by
calling the admin API's own functions. Templates extend `page.html`; `fields.html` and `table.html` have their parts.
"""
