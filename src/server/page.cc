// GET /: the page. Plain HTML, JavaScript and CSS from the binary; asks nobody but this server.
#include "server/endpoint.h"
#include "server/page_html.h"

namespace carpool {
namespace {

void HandlePage(ServerContext& context, std::shared_ptr<Exchange> exchange) {
  if (context.metrics != nullptr) context.metrics->OnHttp(200);
  exchange->Respond(200, "text/html; charset=utf-8", std::string(PageHtml()),
                    {{"Content-Security-Policy",
                      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                      "connect-src 'self'; img-src data:"},
                     {"X-Content-Type-Options", "nosniff"}});
}

}  // namespace

extern const Endpoint kPage;
const Endpoint kPage{"GET", "/", false, false, &HandlePage};

}  // namespace carpool
