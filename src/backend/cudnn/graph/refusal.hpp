#pragma once

#include <string>
#include <string_view>

namespace scoremod::backend::cudnn {

/// Whether the failure text of cuDNN and the frontend reports statuses of the NOT_SUPPORTED family (3000 to 3999) and
/// no other. The frontend keeps a status only as its name in the text: after "code: " or "cudnn_status: ", or before ";
/// Reason:". A name anywhere else is a piece of cuDNN's source that the text quotes.
bool reports_only_refusals(std::string_view text);

/// The important part of a refusal's text, on one line. cuDNN lists every engine, each with the failed check at the
/// bottom of its call stack and all checks above. This keeps the bottom ones, each once. A text of another kind is
/// returned unchanged.
std::string short_refusal(std::string_view text);

}  // namespace scoremod::backend::cudnn
