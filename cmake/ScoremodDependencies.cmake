# The libraries that scoremod itself is made with. All are private: no public header includes any of them.

find_package(Threads REQUIRED)
scoremod_require("nlohmann_json 3.10" nlohmann-json3-dev hwy libhwy-dev)

set(SCOREMOD_LINKED_DEPENDENCIES hwy::hwy Threads::Threads)
set(SCOREMOD_PRIVATE_DEPENDENCIES nlohmann_json::nlohmann_json ${SCOREMOD_LINKED_DEPENDENCIES})
