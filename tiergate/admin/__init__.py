"""The admin client: `tiergate tenant|key|tier|model|adapter|price|usage` over the gateway's REST API."""
