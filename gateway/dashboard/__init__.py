"""`/dashboard`: pages rendered on the server, behind a login. Everything works without scripts.

People log in with an API key or at an identity provider.

A new page is a `Page` or a `FormPage` in the `PAGES` of its module, which `routes.py` lists. Pages act by calling the
admin API's own functions. Templates extend `page.html`; `fields.html` and `table.html` hold shared parts.
"""
