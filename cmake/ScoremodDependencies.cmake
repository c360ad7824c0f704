# The libraries that scoremod itself is made with. All are private: no public header includes any of them.

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(hwy REQUIRED)

set(SCOREMOD_PRIVATE_DEPENDENCIES nlohmann_json::nlohmann_json hwy::hwy Threads::Threads)
