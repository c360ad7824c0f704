#include "progress_bar.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

namespace scoremod::cli {
namespace {

constexpr std::chrono::seconds kQuietTime{2};
constexpr std::chrono::milliseconds kInterval{200};
constexpr int kWidth = 30;

}  // namespace

ProgressBar::ProgressBar() {
  if (isatty(STDERR_FILENO) == 1) drawer_ = std::thread([this] { draw_until_done(); });
}

ProgressBar::~ProgressBar() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  done_changed_.notify_one();
  if (drawer_.joinable()) drawer_.join();
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::update(const std::string& stage, double fraction) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  fraction_ = std::clamp(fraction, 0.0, 1.0);
}

void ProgressBar::draw_until_done() {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return done_; };
  done_changed_.wait_for(lock, kQuietTime, is_done);
  while (!done_) {
    draw();
    done_changed_.wait_for(lock, kInterval, is_done);
  }
}

void ProgressBar::draw() {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const auto filled = static_cast<std::size_t>(fraction_ * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r[%s] %3.0f %%  %.0f s  %s\x1b[K", bar.c_str(), 100 * fraction_, elapsed.count(),
               stage_.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace scoremod::cli
