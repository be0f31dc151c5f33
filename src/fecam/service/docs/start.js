// Shows the OpenAPI document of this service. Swagger UI comes from the package fastapi-offline.

SwaggerUIBundle({ url: "../openapi.json", dom_id: "#operations", validatorUrl: null });
